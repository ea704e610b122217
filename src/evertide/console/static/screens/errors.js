// What is wrong now, and rows that did not fit.

import { get } from "../api.js"
import { Asking } from "../asking.js"
import { h } from "../dom.js"
import { count, plural } from "../format.js"
import { card, empty, link, missing, pathOf, problem, table, trouble, value } from "../parts.js"

const LIMIT = 100

export default {
  title: "Errors",
  open: (_, redraw) => {
    const told = new Asking(() => get("/v1/errors", { limit: LIMIT }), redraw)
    return { view: (world) => view(world, told), close: () => told.close() }
  },
}

function view(world, told) {
  const { status } = world
  if (!told.value && !status) return missing(told.error, "the errors")
  const found = told.value?.problems ?? status?.problems ?? []
  const letters = told.value?.errors ?? []
  return [
    card("Now", null, found.length ? found.map((one) => problem(one, one.of)) : empty("Nothing is wrong.", "Sources, views, sinks and storage do what they should.")),
    told.value
      ? card("Dead letters", { class: "flush", actions: h("span", { class: "quiet" }, told.value.is_truncated ? `${count(letters.length)} of ${plural(told.value.count, "row")}` : plural(letters.length, "row")) },
          h("p", { class: "quiet inset" }, "Rows that do not fit their table. They stop nothing; if its key is known, the key has no row until a good one comes. Correct them where they come from."),
          table({ label: "Dead letters", rows: letters, none: "Every row fitted.", columns: lettersColumns(letters) }))
      : missing(told.error, "dead letters"),
    told.value && trouble(told.error, "dead letters"),
  ]
}

function lettersColumns(letters) {
  const names = letters.length ? Object.keys(letters[0]) : ["table", "reason"]
  return names.map((name) => ({ name, show: (row) => (name === "table" ? link(pathOf("collection", String(row[name])), row[name]) : value(row[name])) }))
}
