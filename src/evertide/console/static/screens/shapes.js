// Shapes: live subscriptions.

import { get, remove } from "../api.js"
import { Poll } from "../poll.js"
import { h } from "../dom.js"
import { bytes, count, moment, plural } from "../format.js"
import { button, card, errorBox, link, loadingOrError, pathOf, table, text } from "../parts.js"

export default {
  title: "Shapes",
  open: (_, redraw) => {
    const poll = new Poll(() => get("/v1/shapes"), redraw)
    const ended = { error: null }
    return { view: () => view(poll, ended), close: () => poll.close() }
  },
}

function view(poll, ended) {
  if (!poll.value) return loadingOrError(poll.error, "the shapes")
  const all = poll.value.shapes
  const end = (handle) => async () => {
    if (!confirm("End this shape? Its clients start again with a new one.")) return
    try {
      await remove(`/v1/shapes/${encodeURIComponent(handle)}`)
      ended.error = null
    } catch (error) {
      ended.error = error
    }
    poll.now()
  }
  return [
    errorBox(poll.error, "the shapes"),
    ended.error && errorBox(ended.error, "the end of the shape"),
    h("p", { class: "quiet hint" }, "A shape is a live, filtered subscription to a table or a view. Browsers and services follow it at /v1/shape; so does this console."),
    card("Shapes", { class: "flush", actions: h("span", { class: "quiet" }, plural(all.length, "shape")) }, table({
      label: "Shapes",
      rows: all,
      keyOf: (row) => row.handle,
      none: "No shapes. Open a collection, and the console subscribes to one.",
      columns: [
        { name: "collection", show: (row) => link(pathOf("collection", row.collection), row.collection) },
        { name: "where", show: (row) => (row.where ? h("code", null, row.where) : text("all rows")) },
        { name: "columns", show: (row) => (row.columns?.length ? row.columns.join(", ") : "all") },
        { name: "clients", isNumber: true, show: (row) => count(row.clients) },
        { name: "rows", isNumber: true, show: (row) => count(row.rows) },
        { name: "log_rows", title: "log", isNumber: true, show: (row) => count(row.log_rows) },
        { name: "bytes", title: "in memory", isNumber: true, show: (row) => bytes(row.bytes) },
        { name: "made", show: (row) => moment(row.made_at_s) },
        { name: "handle", show: (row) => h("code", { title: row.handle }, `…${row.handle.slice(-10)}`) },
        { name: "", title: "", show: (row) => button("End", end(row.handle), { "aria-label": `End the shape of ${row.collection}` }) },
      ],
    })),
  ]
}
