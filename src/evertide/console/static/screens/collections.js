// All tables and views.

import { sparkline } from "../charts.js"
import { h } from "../dom.js"
import { bytes, count, lastTime, plural } from "../format.js"
import { badge, card, errorBox, link, loadingOrError, pathOf, table } from "../parts.js"

export default {
  title: "Collections",
  needs: ["collections"],
  open: (_, redraw) => {
    const filter = { text: "" }
    return { view: (model) => view(model, filter, redraw) }
  },
}

function view(model, filter, redraw) {
  const { collections: all, errors } = model
  if (!all) return loadingOrError(errors.collections, "the collections")
  const text = filter.text.toLowerCase()
  const found = all.filter((one) => one.name.toLowerCase().includes(text))
  const search = h("input", {
    type: "search", placeholder: "Find by name", "aria-label": "Find by name", value: filter.text,
    oninput: (event) => {
      filter.text = event.target.value
      redraw()
    },
  })
  return [
    errorBox(errors.collections, "the collections"),
    card("", { label: "Collections", class: "flush" },
      h("header", { class: "card-head" }, search, h("span", { class: "quiet" }, `${plural(found.length, "collection")}`)),
      table({
        label: "Collections",
        rows: found,
        keyOf: (row) => row.name,
        none: "No collection has this in its name.",
        columns: [
          { name: "name", show: (row) => h("span", { class: "named" }, link(pathOf("collection", row.name), row.name), row.comment && h("small", { class: "quiet" }, row.comment)) },
          { name: "kind", kind: "hide-small" },
          { name: "state", show: (row) => badge(row.state) },
          { name: "rows", isNumber: true, show: (row) => count(row.rows) },
          { name: "recent", show: (row) => sparkline(model.samples.map((one) => [one.at_s, one.rows[row.name]]), `Rows of ${row.name}`) },
          { name: "upper", title: "complete up to transaction", isNumber: true, show: (row) => lastTime(row.upper) },
          { name: "parts", isNumber: true, show: (row) => count(row.parts) },
          { name: "bytes", title: "size", isNumber: true, show: (row) => bytes(row.bytes) },
          { name: "reads", show: (row) => reads(row) },
        ],
      })),
  ]
}

function reads(row) {
  if (row.source) return h("span", { class: "quiet" }, row.source.name)
  return row.reads?.length ? row.reads.flatMap((name, at) => [at ? ", " : "", link(pathOf("collection", name), name)]) : h("span", { class: "quiet" }, row.kind === "table" ? "pushed" : "–")
}
