// One table or view: its facts; in tabs its rows and its changes, live, its SQL, its plan and its cost.

import { sparkline } from "../charts.js"
import { h } from "../dom.js"
import { bytes, count, isNumberType, lastTime, plural } from "../format.js"
import { badge, button, card, empty, errorBox, link, loadingOrError, pathOf, table, tabs, text, tile, value } from "../parts.js"
import { LiveRows } from "../shape.js"
import { highlightSql } from "../sql.js"
import { drawCost, drawPlan, openPlan } from "./plan.js"

const LIMIT = 100
const TABS = { rows: "Rows", changes: "Changes", sql: "SQL", plan: "Plan", cost: "Cost" }
const OPERATIONS = { insert: "added", update: "changed", delete: "removed" }

export default {
  title: "Collection",
  needs: ["collections"],
  open: ([name, tab], redraw) => {
    const screen = { name, tab: Object.hasOwn(TABS, tab ?? "") ? tab : "rows", where: "", draft: "", order: null, live: null, plan: null }
    const close = () => {
      screen.live?.close()
      screen.plan?.close()
    }
    return { view: (model) => view(model, screen, redraw), close }
  },
}

function view(model, screen, redraw) {
  const { collections: all, errors } = model
  if (!all) return loadingOrError(errors.collections, "the collections")
  const found = all.find((one) => one.name === screen.name)
  if (!found) return empty(`The pipeline has no collection ${screen.name}.`, link("/collections", "All collections"))
  if (!screen.live && found.columns.length) follow(screen, found, redraw)
  return [
    h("p", { class: "crumbs" }, link("/collections", "Collections"), " / ", h("strong", null, found.name)),
    found.comment && h("p", { class: "quiet" }, found.comment),
    h("dl", { class: "tiles" },
      tile("State", badge(found.state), found.kind),
      tile("Rows", count(found.rows), sparkline(model.samples.map((one) => [one.at_s, one.rows[found.name]]), `Rows of ${found.name}`)),
      tile("Complete up to transaction", lastTime(found.upper)),
      tile("Stored", bytes(found.bytes), plural(found.parts, "part")),
    ),
    tabs(`About ${found.name}`, entries(found), screen.tab, (tab) => {
      screen.tab = tab
      history.replaceState(null, "", `#${pathOf("collection", found.name, tab)}`) // the screen stays open
      redraw()
    }),
    h("div", { id: "tab-panel", class: "stack", role: "tabpanel", "aria-label": TABS[screen.tab], "data-panel": screen.tab, key: screen.tab }, panel(found, screen, redraw)),
  ]
}

function entries(found) {
  return Object.entries(TABS).filter(([tab]) => found.kind === "view" || (tab !== "plan" && tab !== "cost"))
}

function panel(found, screen, redraw) {
  if (screen.tab === "changes") return changes(found, screen)
  if (screen.tab === "sql") return h("div", { class: "columns" }, definition(found), columns(found))
  if (found.kind === "view" && (screen.tab === "plan" || screen.tab === "cost")) {
    screen.plan ??= openPlan(found.name, redraw)
    return screen.plan.view(screen.tab === "plan" ? drawPlan : drawCost)
  }
  return rows(found, screen, redraw)
}

function follow(screen, found, redraw) {
  screen.live?.close()
  screen.order ??= { column: (found.key ?? [found.columns[0].name])[0], isDown: false }
  screen.live = new LiveRows({ collection: found.name, where: screen.where, order: screen.order, limit: LIMIT, changed: redraw })
}

function rows(found, screen, redraw) {
  const { live } = screen
  const submit = (event) => {
    event.preventDefault()
    screen.where = screen.draft.trim()
    follow(screen, found, redraw)
    redraw()
  }
  const filter = h("form", { class: "filter", onsubmit: submit },
    h("label", null, h("span", null, "where"), h("input", { value: screen.draft, spellcheck: "false", autocapitalize: "off", placeholder: example(found), "aria-label": "Only rows where", oninput: (event) => { screen.draft = event.target.value } })),
    h("button", { type: "submit" }, "Filter"),
    screen.where && button("All rows", () => { screen.where = screen.draft = ""; follow(screen, found, redraw); redraw() }),
  )
  return card("Rows", { class: "flush", actions: liveMark(live) },
    filter,
    live?.error && h("div", { class: "inset" }, errorBox(live.error, "the rows")),
    live && table({
      label: `Rows of ${found.name}`,
      kind: "rows",
      rows: live.rows,
      keyOf: (row) => row.key,
      classOf: (row) => row.change && `${row.change} ${row.number % 2 ? "odd" : "even"}`,
      none: live.state === "loading" ? "Loading rows…" : screen.where ? "No row matches." : "The collection is empty.",
      columns: found.columns.map(({ name, type }) => ({
        name, isNumber: isNumberType(type), show: (row) => value(row.value[name]),
        order: screen.order?.column === name && (screen.order.isDown ? "down" : "up"),
        onsort: () => { screen.order = { column: name, isDown: screen.order?.column === name && !screen.order.isDown }; follow(screen, found, redraw); redraw() },
      })),
    }),
    live?.isMore && h("p", { class: "quiet inset" }, `The first ${LIMIT} rows by ${screen.order.column}. Sort by another column, or filter, to see others.`))
}

function liveMark(live) {
  return live && h("span", { class: `connection ${live.state === "live" ? "live" : live.state}`, "data-rows": live.state }, h("span", { class: "dot-mark", "aria-hidden": "true" }), describe(live))
}

function changes(found, { live, where }) {
  return card("Changes", { class: "flush", actions: liveMark(live) },
    live?.error && h("div", { class: "inset" }, errorBox(live.error, "the changes")),
    table({
      label: `Changes of ${found.name}`,
      rows: live?.log ?? [],
      keyOf: (row) => String(row.number),
      none: "No change since this page was opened.",
      columns: [
        { name: "time", title: "transaction", isNumber: true, show: (row) => count(row.time) },
        { name: "operation", title: "row", show: (row) => h("span", { class: row.operation === "delete" ? "quiet" : null, "data-operation": row.operation }, OPERATIONS[row.operation] ?? row.operation) },
        ...found.columns.map(({ name, type }) => ({ name, isNumber: isNumberType(type), show: (row) => changed(row, name) })),
      ],
    }),
    h("p", { class: "quiet inset" }, `${where ? `Of rows where ${where}. ` : ""}Changes since this page was opened, the last 200. Earlier ones: `, h("code", null, `GET /v1/${found.kind}s/${encodeURIComponent(found.name)}/changes`)))
}

// The value, and before it the one that it replaced.
function changed({ value: row, before }, name) {
  if (!before || !(name in before) || before[name] === row[name]) return name in row ? value(row[name]) : text(null)
  return [h("del", null, value(before[name])), " ", value(row[name])]
}

function describe(live) {
  if (live.state === "live") return `live, at time ${count(live.time)}${live.changes ? `, ${count(live.changes)} changes seen` : ""}`
  return { loading: "loading", away: "the server does not answer: these rows are old", failed: "not live" }[live.state]
}

function example(found) {
  const one = found.columns.find(({ type }) => isNumberType(type)) ?? found.columns[0]
  return isNumberType(one?.type) ? `${one.name} > 100` : `${one?.name} = 'text'`
}

function columns(found) {
  const key = new Set(found.key ?? [])
  return card("Columns", null, table({
    label: "Columns",
    rows: found.columns,
    keyOf: (row) => row.name,
    columns: [
      { name: "name", show: (row) => (key.has(row.name) ? h("strong", null, row.name) : row.name) },
      { name: "type", show: (row) => h("code", null, row.type) },
      { name: "key", show: (row) => (key.has(row.name) ? "key" : "") },
      { name: "null", show: (row) => (row.is_nullable ? "may be NULL" : "") },
    ],
  }))
}

function definition(found) {
  const neighbours = [
    found.reads?.length > 0 && h("p", null, "Reads ", found.reads.flatMap((name, at) => [at ? ", " : "", link(pathOf("collection", name), name)])),
    found.source && h("p", null, "Fed by ", h("strong", null, found.source.name), found.source.connector !== found.source.name && ` (${found.source.connector})`),
    found.sinks?.length > 0 && h("p", null, `Written to ${found.sinks.map((one) => one.name).join(", ")}`),
  ]
  if (!found.sql) return card("Where rows come from", null, neighbours.some(Boolean) ? neighbours : h("p", null, "Clients push the rows, from Python or over HTTP."))
  return card("Query", { actions: link(pathOf("flow", found.name), "in the flow") }, highlightSql(found.sql), neighbours)
}
