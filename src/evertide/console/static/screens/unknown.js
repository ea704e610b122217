// An address that the console does not have.

import { h } from "../dom.js"
import { empty, link } from "../parts.js"

export default {
  title: "Page not found",
  open: ([address]) => ({ view: () => view(address) }),
}

function view(address) {
  const links = [link("/overview", "Overview"), ", ", link("/flow", "Flow"), ", ", link("/collections", "Collections"), ", ", link("/query", "SQL")]
  return empty(`The console has no page ${address}.`, h("span", null, "Go to ", links, ", or choose a page from the menu."))
}
