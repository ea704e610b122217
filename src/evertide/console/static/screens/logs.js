// The last log lines of the process.

import { get } from "../api.js"
import { Poll } from "../poll.js"
import { h } from "../dom.js"
import { clock, count } from "../format.js"
import { card, empty, errorBox, loadingOrError } from "../parts.js"

const LIMIT = 300
const LEVELS = { debug: "everything", info: "INFO and above", warning: "WARNING and above", error: "ERROR and above" }

export default {
  title: "Logs",
  open: (_, redraw) => {
    const screen = { level: "info", text: "" }
    const poll = new Poll(() => get("/v1/logs", { limit: LIMIT, level: screen.level }), redraw)
    return { view: () => view(poll, screen, redraw), close: () => poll.close() }
  },
}

function view(poll, screen, redraw) {
  if (!poll.value) return loadingOrError(poll.error, "the log")
  const search_text = screen.text.toLowerCase()
  const found = poll.value.logs.filter((one) => `${one.logger} ${one.message} ${one.error_code ?? ""}`.toLowerCase().includes(search_text))
  const level = h("select", { "aria-label": "Level", value: screen.level, onchange: (event) => { screen.level = event.target.value; poll.now() } },
    Object.entries(LEVELS).map(([name, words]) => h("option", { value: name }, words)))
  const search = h("input", { type: "search", placeholder: "Find in the log", "aria-label": "Find in the log", value: screen.text, oninput: (event) => { screen.text = event.target.value; redraw() } })
  return [
    errorBox(poll.error, "the log"),
    card("", { class: "flush", label: "Log" },
      h("header", { class: "card-head" }, level, search, h("span", { class: "quiet" }, "the newest first")),
      found.length ? h("ol", { class: "log" }, found.map(line)) : h("div", { class: "inset" }, empty("No line matches."))),
  ]
}

function line(one) {
  const at_s = Date.parse(one.time) / 1000
  return h("li", { class: `log-line ${one.level.toLowerCase()}` },
    h("time", { title: one.time }, clock(at_s)),
    h("span", { class: "log-level" }, one.level.toLowerCase()),
    h("span", { class: "log-text" }, h("small", null, one.logger), one.transaction != null && h("small", null, ` transaction ${count(one.transaction)}`), one.error_code && h("code", null, ` ${one.error_code}`), ` ${one.message}`, one.trace && h("details", null, h("summary", null, "trace"), one.trace)))
}
