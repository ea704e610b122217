// SQL as elements, with highlighting.

import { h } from "./dom.js"

const WORDS = new Set(
  `add all and any as asc between by case cast create cross cube current date desc distinct else end except exists false filter first
   following for from full group having in inner insert intersect interval into is join lateral left like limit materialized minus natural
   not null nulls offset on or order outer over partition preceding range right rlike rollup row rows select semi anti sets grouping set
   table tblproperties then timestamp to true unbounded union unpivot pivot using values view when where window with`.split(/\s+/),
)
const PIECES = /(--[^\n]*|\/\*[\s\S]*?\*\/)|('(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")|(`[^`]*`|[A-Za-z_][\w]*)|(\d[\w.]*)/g

export function highlightSql(text) {
  const found = []
  let at = 0
  for (const hit of text.matchAll(PIECES)) {
    if (hit.index > at) found.push(text.slice(at, hit.index))
    found.push(piece(hit))
    at = hit.index + hit[0].length
  }
  found.push(text.slice(at))
  return h("pre", { class: "sql", tabindex: 0 }, h("code", null, found))
}

function piece([all, comment, literal, word, number]) {
  const kind = comment ? "comment" : literal ? "literal" : number ? "number" : word && WORDS.has(word.toLowerCase()) ? "word" : ""
  return kind ? h("span", { class: `sql-${kind}` }, all) : all
}
