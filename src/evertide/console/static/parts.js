// Elements that several screens share: cards, tables, badges, problems.

import { ServerError, ServerUnavailable, TimedOut } from "./api.js"
import { h } from "./dom.js"
import { bytes, cell, count, isNumberType, moment, NOTHING, seconds } from "./format.js"

const GOOD = new Set(["running", "active", "leads", "committed", "live"])
const WAITING = new Set(["hydrating", "replaying", "reconnecting", "waiting", "lagging", "paused", "warning", "undeclared", "not finished", "follows", "read-only", "starting", "polling"])

export function tone(state) {
  if (!state) return "quiet"
  return GOOD.has(state) ? "good" : WAITING.has(state) ? "waiting" : state === "stopped" ? "quiet" : "bad"
}

export function badge(state, words = state) {
  return h("span", { class: `badge ${tone(state)}` }, h("span", { class: "dot-mark", "aria-hidden": "true" }), words || "unknown")
}

export function card(title, props, ...children) {
  const { class: kind = "", actions, label, ...others } = props ?? {}
  return h(
    "section",
    { class: `card ${kind}`, "aria-label": label ?? title, ...others },
    (title || actions) && h("header", { class: "card-head" }, title && h("h2", null, title), actions && h("div", { class: "card-actions" }, actions)),
    ...children,
  )
}

export function tile(name, value, words, props) {
  return h("div", { class: "tile", "data-tile": name, ...props }, h("dt", null, name), h("dd", null, value), words && h("dd", { class: "tile-words" }, words))
}

export function link(path, text, props) {
  return h("a", { href: `#${path}`, ...props }, text)
}

export function pathOf(...pieces) {
  return `/${pieces.map(encodeURIComponent).join("/")}`
}

export function problem({ state, error_code: code, why, remedy, since_s, wait_s }, where) {
  return h(
    "article",
    { class: `problem ${tone(state)}` },
    h("header", null, badge(state), where && h("strong", null, where), code && h("code", null, code), since_s ? h("span", { class: "quiet" }, `since ${moment(since_s)}`) : null),
    h("p", { class: "why" }, why || "The server gave no reason."),
    remedy && h("p", { class: "remedy" }, h("span", null, "What to do"), remedy),
    wait_s != null && h("p", { class: "quiet" }, `Next retry in ${seconds(wait_s)}.`),
  )
}

export function empty(words, more) {
  return h("div", { class: "empty" }, h("p", null, words), more && h("p", { class: "quiet" }, more))
}

// An error, what it is about, and what to do. It is shown above the last values, which stay on the page.
export function errorBox(error, what, about = null) {
  if (!error) return null
  if (error instanceof ServerError && error.isMissing && error.code !== "invalid_input") {
    return empty(`This server does not offer ${what}.`, "It may be an earlier version; everything else works.")
  }
  const head = error instanceof TimedOut ? "The request timed out" : error instanceof ServerUnavailable ? "The server does not answer" : `${what[0].toUpperCase()}${what.slice(1)} cannot be shown`
  return h(
    "div",
    { class: "problem bad", role: "alert" },
    h("header", null, h("strong", null, head), error.code && h("code", null, error.code)),
    h("p", { class: "why" }, error.message),
    about,
    error.remedy && h("p", { class: "remedy" }, h("span", null, "What to do"), error.remedy),
  )
}

export function loading(what) {
  return h("div", { class: "empty", role: "status" }, h("span", { class: "spinner", "aria-hidden": "true" }), `Loading ${what}…`)
}

// What a screen shows before it has values.
export function loadingOrError(error, what) {
  return error ? errorBox(error, what) : loading(what)
}

// columns: [{name, title?, isNumber?, isSorted?, show?: row => content, onsort?}]
export function table({ label, columns, rows, keyOf, classOf, none = "No entries.", kind = "" }) {
  return h(
    "div",
    { class: "table-box", tabindex: 0, role: "region", "aria-label": label },
    h(
      "table",
      { class: kind },
      h("thead", null, h("tr", null, columns.map(heading))),
      h(
        "tbody",
        null,
        rows.length
          ? rows.map((row, at) => h("tr", { key: keyOf?.(row, at), class: classOf?.(row) }, columns.map((one) => h("td", { class: [one.isNumber && "number", one.kind].filter(Boolean).join(" ") || null }, one.show ? one.show(row) : text(row[one.name])))))
          : h("tr", { key: "none" }, h("td", { colspan: columns.length, class: "quiet" }, none)),
      ),
    ),
  )
}

function heading(one) {
  const title = one.title ?? one.name
  const kind = [one.isNumber && "number", one.kind].filter(Boolean).join(" ") || null
  if (!one.onsort) return h("th", { scope: "col", class: kind }, title)
  const order = one.order ? (one.order === "down" ? "descending" : "ascending") : "none"
  const mark = one.order ? (one.order === "down" ? " ↓" : " ↑") : ""
  return h("th", { scope: "col", class: kind, "aria-sort": order }, h("button", { type: "button", class: "sort", onclick: one.onsort }, `${title}${mark}`))
}

export function text(value) {
  return value == null || value === "" ? h("span", { class: "quiet" }, NOTHING) : String(value)
}

// A value of a row, of any type.
export function value(one) {
  return one == null ? h("span", { class: "null" }, "NULL") : h("span", { class: "value", title: cell(one).length > 40 ? cell(one).slice(0, 2000) : null }, cell(one).slice(0, 2000))
}

export function valueColumns(columns, more = () => ({})) {
  return columns.map(({ name, type }, at) => ({ name, title: name, isNumber: isNumberType(type), show: (row) => value(Array.isArray(row) ? row[at] : row[name]), ...more(name) }))
}

export function lag(one) {
  if (!one) return NOTHING
  const parts = [
    one.bytes != null && bytes(one.bytes),
    one.rows != null && `${count(one.rows)} rows`,
    one.files != null && `${count(one.files)} files`,
    one.seconds != null && seconds(one.seconds),
  ]
  return parts.filter(Boolean).join(", ") || NOTHING
}

// A row of tabs: entries are [name, title]. The arrow keys move between them.
export function tabs(label, entries, chosen, choose) {
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key]
    if (!step) return
    event.preventDefault()
    const at = entries.findIndex(([name]) => name === chosen)
    const to = (at + step + entries.length) % entries.length
    event.currentTarget.children[to].focus()
    choose(entries[to][0])
  }
  return h("div", { class: "tabs", role: "tablist", "aria-label": label, onkeydown: move },
    entries.map(([name, title]) => h("button", { type: "button", role: "tab", key: name, "data-tab": name, "aria-selected": String(name === chosen), "aria-controls": "tab-panel", tabindex: name === chosen ? 0 : -1, onclick: () => choose(name) }, title)))
}

export function button(words, onclick, props) {
  return h("button", { type: "button", onclick, ...props }, words)
}
