// A collection of TanStack DB that follows a shape. Each line on standard input is a request, each line on standard
// output an answer; both are JSON objects.
//
//   node await.mjs OPTIONS          OPTIONS is JSON: `shape` is for `shapeOptions`, `syncMode` is optional
//   {"txid": 7, "timeout": 60000}   waits with `awaitTxId`, then answers with the rows that the collection has
//   {"load": true}                  loads all rows of a collection whose `syncMode` is `on-demand`

import { createInterface } from "node:readline"
import { createCollection, createLiveQueryCollection } from "@tanstack/db"
import { electricCollectionOptions } from "@tanstack/electric-db-collection"

const { shape, syncMode } = JSON.parse(process.argv[2])
const say = (value) =>
  process.stdout.write(JSON.stringify(value, (_, each) => (typeof each === "bigint" ? Number(each) : each)) + "\n")

const orders = createCollection(
  electricCollectionOptions({ id: "orders", getKey: (row) => row.id, syncMode, shapeOptions: shape }),
)
const rows = () => [...orders.values()].map(({ id, amount }) => [id, amount])

const answer = async ({ txid, timeout, load }) => {
  if (load) {
    await createLiveQueryCollection((q) => q.from({ orders })).preload()
    say({ loaded: rows() })
    return
  }
  try {
    await orders.utils.awaitTxId(txid, timeout)
    say({ txid, rows: rows() })
  } catch (error) {
    say({ txid, error: error.name, rows: rows() })
  }
}

createInterface({ input: process.stdin }).on("line", (line) => void answer(JSON.parse(line)))
if (syncMode === "on-demand") orders.startSyncImmediate()
else await orders.preload()
say({ ready: rows() })
