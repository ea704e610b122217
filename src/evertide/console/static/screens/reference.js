// The HTTP API, from the server's OpenAPI document.

import { address, get } from "../api.js"
import { Poll } from "../poll.js"
import { h } from "../dom.js"
import { button, card, loadingOrError, table } from "../parts.js"

const METHODS = ["get", "post", "put", "patch", "delete"]

export default {
  title: "API",
  open: (_, redraw) => {
    const poll = new Poll(() => get("/v1/openapi.json"), redraw, 0)
    const screen = { text: "" }
    return { view: () => view(poll, screen, redraw), close: () => poll.close() }
  },
}

function view(poll, screen, redraw) {
  if (!poll.value) return loadingOrError(poll.error, "the description of its API")
  const { info, paths = {} } = poll.value
  const search_text = screen.text.toLowerCase()
  const all = Object.entries(paths).flatMap(([path, item]) => METHODS.filter((method) => item[method]).map((method) => ({ path, method, shared: item.parameters ?? [], ...item[method] })))
  const found = all.filter((one) => `${one.method} ${one.path} ${one.summary ?? ""}`.toLowerCase().includes(search_text))
  const groups = groupByTag(found)
  return [
    card(info?.title ?? "HTTP API", { actions: h("a", { href: address("/v1/openapi.json").href }, "openapi.json") },
      info?.description && h("p", null, info.description),
      h("input", { type: "search", placeholder: "Find an address", "aria-label": "Find an address", value: screen.text, oninput: (event) => { screen.text = event.target.value; redraw() } })),
    [...groups].map(([name, operations]) => card(name, { class: "flush", key: name }, operations.map((one) => operation(one, poll.value)))),
  ]
}

function group(one) {
  return one.tags?.[0] ?? "other"
}

function groupByTag(all) {
  const found = new Map()
  for (const one of all) found.set(group(one), [...(found.get(group(one)) ?? []), one])
  return found
}

function operation(one, whole) {
  const parameters = [...one.shared, ...(one.parameters ?? [])].map((each) => resolveReference(each, whole))
  const bodies = Object.entries(resolveReference(one.requestBody, whole)?.content ?? {})
  const answers = Object.entries(one.responses ?? {}).map(([code, each]) => [code, resolveReference(each, whole)])
  return h(
    "details",
    { class: "operation", key: `${one.method} ${one.path}` },
    h("summary", null, h("span", { class: `method ${one.method}` }, one.method.toUpperCase()), h("code", null, one.path), h("span", { class: "quiet" }, one.summary ?? "")),
    h(
      "div",
      { class: "operation-body" },
      one.description && h("p", null, one.description),
      parameters.length > 0 && [h("h3", null, "Parameters"), table({
        label: "Parameters",
        rows: parameters,
        keyOf: (row) => `${row.in} ${row.name}`,
        columns: [
          { name: "name", show: (row) => [h("code", null, row.name), row.required ? h("small", { class: "quiet" }, " required") : ""] },
          { name: "in" },
          { name: "type", show: (row) => shape(row.schema, whole) },
          { name: "description", show: (row) => row.description ?? row.schema?.description ?? "" },
        ],
      })],
      bodies.length > 0 && [h("h3", null, "Body"), bodies.map(([type, each]) => media(type, each, whole))],
      h("h3", null, "Responses"),
      answers.map(([code, each]) => h("div", { class: "answer" }, h("b", { class: "number" }, code), h("span", null, each?.description ?? ""), Object.entries(each?.content ?? {}).map(([type, inner]) => media(type, inner, whole)))),
      h("h3", null, "Try it"),
      h("pre", { class: "sql", tabindex: 0 }, h("code", null, curl(one, bodies, whole))),
      button("Copy", () => navigator.clipboard?.writeText(curl(one, bodies, whole))),
    ),
  )
}

function media(type, each, whole) {
  return h("p", { class: "media" }, h("code", null, type), " ", shape(each?.schema, whole))
}

function resolveReference(one, whole) {
  if (!one?.$ref) return one
  return one.$ref.replace("#/", "").split("/").reduce((at, piece) => at?.[piece.replaceAll("~1", "/")], whole) ?? one
}

// A schema in one line.
function shape(schema, whole, depth = 0) {
  const one = resolveReference(schema, whole)
  if (!one) return ""
  const choices = one.anyOf ?? one.oneOf
  if (choices) return choices.map((each) => shape(each, whole, depth)).join(" or ")
  if (one.enum) return one.enum.map((each) => JSON.stringify(each)).join(" | ")
  if (one.const !== undefined) return JSON.stringify(one.const)
  const type = [one.type].flat().filter(Boolean).join(" or ")
  if (one.items) return depth > 3 ? "[…]" : `[${shape(one.items, whole, depth + 1)}]`
  if (!one.properties) return type
  return depth > 2 ? "{…}" : `{${Object.entries(one.properties).map(([name, each]) => `${name}: ${shape(each, whole, depth + 1) || "any"}`).join(", ")}}`
}

function curl(one, bodies, whole) {
  const method = one.method === "get" ? "" : ` -X ${one.method.toUpperCase()}`
  const type = bodies[0]?.[0]
  const body = type ? ` \\\n  -H 'Content-Type: ${type}' -d '${JSON.stringify(sample(bodies[0][1]?.schema, whole)) ?? ""}'` : ""
  return `curl${method} '${address("/").origin}${one.path}'${body}`
}

function sample(schema, whole) {
  const one = resolveReference(schema, whole) ?? {}
  if (one.example !== undefined) return one.example
  const inner = (one.anyOf ?? one.oneOf)?.[0]
  if (inner) return sample(inner, whole)
  if (one.properties) return Object.fromEntries(Object.entries(one.properties).filter(([name]) => !one.required || one.required.includes(name)).map(([name, each]) => [name, sample(each, whole)]))
  return { array: [], integer: 0, number: 0, boolean: false, string: "…" }[[one.type].flat()[0]] ?? {}
}
