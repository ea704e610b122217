// SQL queries over all tables and views at one time; the answer as a table and as a chart.

import { post } from "../api.js"
import { plot } from "../charts.js"
import { h } from "../dom.js"
import { cell, count, isNumberType, plural, seconds } from "../format.js"
import { button, card, empty, errorBox, table, valueColumns } from "../parts.js"

const HISTORY = "evertide.queries"
const DRAFT = "evertide.query"
const HISTORY_MAX = 30
const LIMIT = 1000
const BARS_MAX = 60

export default {
  title: "SQL",
  needs: ["collections"],
  open: (_, redraw) => {
    const screen = { sql: read(DRAFT, ""), history: read(HISTORY, []), answer: null, error: null, stop: null, chart: null, redraw }
    return { view: (model) => view(model, screen), close: () => screen.stop?.abort() }
  },
}

function view({ collections }, screen) {
  const isBusy = Boolean(screen.stop)
  const submit = (event) => {
    event?.preventDefault()
    run(screen)
  }
  return [
    card("", { label: "Query", class: "question" },
      h("form", { onsubmit: submit },
        h("textarea", {
          "aria-label": "SQL", rows: 6, spellcheck: "false", autocapitalize: "off", autocomplete: "off", value: screen.sql,
          placeholder: example(collections),
          oninput: (event) => { screen.sql = event.target.value; store(DRAFT, screen.sql) },
          onkeydown: (event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && submit(event),
        }),
        h("div", { class: "question-foot" },
          h("button", { type: "submit", class: "primary", disabled: isBusy }, isBusy ? "Running…" : "Run"),
          isBusy ? button("Stop", () => screen.stop.abort()) : h("kbd", { class: "hide-small" }, "Ctrl Enter"),
          h("span", { class: "quiet" }, "Read only. All collections are read as of one transaction."),
        )),
      collections && h("div", { class: "chips", "aria-label": "Collections" }, collections.map((one) => button(one.name, () => { screen.sql = `SELECT * FROM ${quoteName(one.name)} LIMIT 100`; run(screen) }, { key: one.name, class: "chip", title: `Show rows of ${one.name}` })))),
    screen.error && errorBox(screen.error, "the answer", markLine(screen.error.body?.where, screen.error.sql)),
    screen.answer && [chart(screen), result(screen)],
    !screen.answer && !screen.error && empty("No query yet.", "Choose a collection above, or write a SELECT."),
    showHistory(screen),
  ]
}

function example(collections) {
  const one = collections?.find((each) => each.kind === "view") ?? collections?.[0]
  return one ? `SELECT * FROM ${quoteName(one.name)} LIMIT 100` : "SELECT 1"
}

function quoteName(name) {
  return /^[A-Za-z_]\w*$/.test(name) ? name : "`" + name.replaceAll("`", "``") + "`"
}

async function run(screen) {
  const sql = screen.sql.trim() || ""
  if (!sql || screen.stop) return
  screen.stop = new AbortController()
  screen.error = null
  screen.redraw()
  try {
    screen.answer = await post("/v1/query", { sql, limit: LIMIT }, { limit_ms: 120_000, signal: screen.stop.signal })
    screen.chart = chooseChart(screen.answer)
    remember(screen, sql)
  } catch (error) {
    screen.error = screen.stop.signal.aborted ? Object.assign(new Error("The query was stopped."), { remedy: "" }) : Object.assign(error, { sql })
  }
  screen.stop = null
  screen.redraw()
}

// The line of a query that an error is about, and below it a caret; `where` is query:line:column, from 1.
function markLine(where, sql) {
  const [, line, column] = /^query:(\d+):(\d+)/.exec(where ?? "") ?? []
  const text = line && sql.split("\n")[line - 1]
  return text == null ? null : h("pre", { class: "sql", tabindex: 0 }, `${text.replaceAll("\t", " ")}\n${" ".repeat(column - 1)}^`)
}

function remember(screen, sql) {
  screen.history = [{ sql, at_s: Date.now() / 1000 }, ...screen.history.filter((one) => one.sql !== sql)].slice(0, HISTORY_MAX)
  store(HISTORY, screen.history)
  store(DRAFT, screen.sql)
}

function result({ answer }) {
  const { columns, rows } = answer
  const facts = `${answer.is_truncated ? "the first " : ""}${plural(rows.length, "row")} at time ${count(answer.time)}, by ${answer.engine} in ${seconds(answer.took_ms / 1000)}`
  return card("Answer", { class: "flush", actions: [h("span", { class: "quiet", role: "status" }, facts), button("Copy as CSV", () => navigator.clipboard?.writeText(csv(answer)))] },
    table({ label: "Answer", kind: "rows", rows, none: "No rows.", columns: valueColumns(columns) }))
}

function csv({ columns, rows }) {
  const field = (one) => (one == null ? "" : /[",\n]/.test(cell(one)) ? `"${cell(one).replaceAll('"', '""')}"` : cell(one))
  return [columns.map((one) => field(one.name)), ...rows.map((row) => row.map(field))].map((row) => row.join(",")).join("\n")
}

// The first column that is not a number, against the first that is.
function chooseChart({ columns, rows }) {
  const numbers = columns.map((one, at) => (isNumberType(one.type) || typeof rows[0]?.[at] === "number" ? at : -1)).filter((at) => at >= 0)
  const x = columns.findIndex((_, at) => !numbers.includes(at))
  const y = numbers.find((at) => at !== x)
  return y == null ? null : { kind: "bars", x: x >= 0 ? x : 0, y: x < 0 && numbers.length > 1 ? numbers[1] : y }
}

function chart(screen) {
  const { chart: chosen, answer } = screen
  if (!chosen || answer.rows.length < 2) return null
  const pick = (name, options, value) =>
    h("label", null, h("span", null, name), h("select", { value: String(value), onchange: (event) => { chosen[name] = name === "kind" ? event.target.value : Number(event.target.value); screen.redraw() } },
      options.map(([key, words]) => h("option", { value: String(key) }, words))))
  const columns = answer.columns.map((one, at) => [at, one.name])
  const points = pointsOf(answer, chosen)
  const names = `${answer.columns[chosen.y].name} by ${answer.columns[chosen.x].name}`
  return card("Chart", { actions: h("div", { class: "picks" }, pick("kind", [["bars", "bars"], ["line", "line"], ["area", "area"]], chosen.kind), pick("x", columns, chosen.x), pick("y", columns, chosen.y)) },
    points.length
      ? plot({ name: "answer", label: names, points, kind: chosen.kind, height: 220, formatX: (value) => String(Math.round(value * 1000) / 1000) })
      : empty("The column for y has no numbers.", "Choose another column."))
}

function pointsOf({ rows }, { kind, x, y }) {
  const known = rows.filter((row) => row[y] != null && row[y] !== "" && Number.isFinite(Number(row[y])))
  const points = known.map((row) => ({ name: cell(row[x]), x: Number(row[x]), y: Number(row[y]), words: `${cell(row[x])}: ${cell(row[y])}` }))
  const isScale = kind !== "bars" && points.every((one) => Number.isFinite(one.x))
  const isTime = kind !== "bars" && !isScale && points.every((one) => !Number.isNaN(Date.parse(one.name)))
  if (isScale) return points.sort((a, b) => a.x - b.x)
  if (isTime) return points.map((one) => ({ ...one, x: Date.parse(one.name) / 1000 })).sort((a, b) => a.x - b.x)
  return kind === "bars" ? points.slice(0, BARS_MAX).map((one) => ({ ...one, x: one.name })) : points.map((one, at) => ({ ...one, x: at }))
}

function showHistory(screen) {
  if (!screen.history.length) return null
  const clear = () => {
    screen.history = []
    store(HISTORY, [])
    screen.redraw()
  }
  return card("History", { actions: button("Clear", clear) },
    h("ul", { class: "history" }, screen.history.map((one) => h("li", { key: one.sql }, h("button", { type: "button", class: "quiet-button", onclick: () => { screen.sql = one.sql; store(DRAFT, one.sql); run(screen) } }, one.sql)))))
}

function read(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? fallback
  } catch {
    return fallback
  }
}

function store(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value))
  } catch {
    // A browser without storage has no history.
  }
}
