// The input of each transaction.

import { get } from "../api.js"
import { Poll } from "../poll.js"
import { h } from "../dom.js"
import { bytes, count, moment } from "../format.js"
import { badge, button, card, errorBox, loadingOrError, table } from "../parts.js"

const LIMIT = 50

export default {
  title: "Journal",
  open: (_, redraw) => {
    const screen = { before: null }
    const poll = new Poll(() => get("/v1/journal", { limit: LIMIT, before: screen.before }), redraw)
    const go = (before) => () => {
      screen.before = before
      poll.now()
    }
    return { view: () => view(poll, screen, go), close: () => poll.close() }
  },
}

function view(poll, screen, go) {
  if (!poll.value) return loadingOrError(poll.error, "the journal")
  const lines = poll.value.records
  const oldest = lines.at(-1)?.time
  const moves = h("div", { class: "pages" },
    button("Newest", go(null), { disabled: screen.before == null }),
    button("Older", go(oldest), { disabled: lines.length < LIMIT || !oldest }),
  )
  return [
    errorBox(poll.error, "the journal"),
    h("p", { class: "quiet hint" }, "The input of a transaction is stored here before the transaction is computed. Records that no checkpoint needs are deleted."),
    card("Transactions", { class: "flush", actions: moves }, table({
      label: "Journal",
      rows: lines,
      keyOf: (row) => row.time,
      none: "The journal has no records.",
      columns: [
        { name: "time", isNumber: true, show: (row) => count(row.time) },
        { name: "", title: "state", show: (row) => badge(row.committed ? "committed" : "not finished") },
        { name: "rows", isNumber: true, show: (row) => count(row.rows) },
        { name: "bytes", title: "staged", isNumber: true, show: (row) => (row.bytes ? bytes(row.bytes) : "–") },
        { name: "input", show: inputs },
        { name: "generation", isNumber: true, show: (row) => count(row.generation) },
        { name: "bound", title: "stored at", show: (row) => moment(row.bound_at_s) },
      ],
    })),
  ]
}

function inputs(row) {
  return row.moved.map((source) => h("span", { class: "input", title: row.positions[source] }, h("b", null, source), " ", short(row.positions[source])))
}

function short(position) {
  const text = String(position ?? "")
  return text.length > 42 ? `${text.slice(0, 20)}…${text.slice(-20)}` : text
}
