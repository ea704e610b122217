// Current problems, and rows that did not fit their table.

import { get } from "../api.js"
import { Poll } from "../poll.js"
import { h } from "../dom.js"
import { count, plural } from "../format.js"
import { card, empty, errorBox, link, loadingOrError, pathOf, problem, table, value } from "../parts.js"

const LIMIT = 100

export default {
  title: "Errors",
  open: (_, redraw) => {
    const poll = new Poll(() => get("/v1/errors", { limit: LIMIT }), redraw)
    return { view: (model) => view(model, poll), close: () => poll.close() }
  },
}

function view(model, poll) {
  const { status } = model
  if (!poll.value && !status) return loadingOrError(poll.error, "the errors")
  const found = poll.value?.problems ?? status?.problems ?? []
  const deadLetters = poll.value?.errors ?? []
  return [
    card("Current problems", null, found.length ? found.map((one) => problem(one, one.of)) : empty("No problems.", "Sources, views, sinks and storage work.")),
    poll.value
      ? card("Dead letters", { class: "flush", actions: h("span", { class: "quiet" }, poll.value.is_truncated ? `${count(deadLetters.length)} of ${plural(poll.value.count, "row")}` : plural(deadLetters.length, "row")) },
          h("p", { class: "quiet inset" }, "Rows that do not fit their table. The pipeline continues without them. If the key of such a row is known, the table has no row for that key until a valid one arrives. Correct the rows in their source."),
          table({ label: "Dead letters", rows: deadLetters, none: "All rows fit their tables.", columns: listDeadLetterColumns(deadLetters) }))
      : loadingOrError(poll.error, "dead letters"),
    poll.value && errorBox(poll.error, "dead letters"),
  ]
}

function listDeadLetterColumns(deadLetters) {
  const names = deadLetters.length ? Object.keys(deadLetters[0]) : ["table", "reason"]
  return names.map((name) => ({ name, show: (row) => (name === "table" ? link(pathOf("collection", String(row[name])), row[name]) : value(row[name])) }))
}
