// Follows a shape with Electric's own client. Prints its rows after each up-to-date, one JSON object per line.
//
//   node follow.mjs OPTIONS    OPTIONS is JSON, as `new ShapeStream` takes them. With `repeats`, `onError` repeats a request
//                              whose response was cut off, as docs/shapes.md recommends
//
// A line on its input asks for a subset, given as JSON.

import { createInterface } from "node:readline"
import { FetchError, Shape, ShapeStream, isControlMessage } from "@electric-sql/client"

const { repeats, ...options } = JSON.parse(process.argv[2])
const say = (value) =>
  process.stdout.write(JSON.stringify(value, (_, each) => (typeof each === "bigint" ? `${each}n` : each)) + "\n")

const stream = new ShapeStream({
  ...options,
  onError: (error) => {
    if (repeats && error instanceof FetchError && error.status === 200) return {}
    say({ error: error.name, message: error.message })
  },
})

let txids = []
stream.subscribe((messages) => {
  for (const message of messages) {
    if (isControlMessage(message)) {
      if (message.headers.control === "must-refetch") say({ refetch: true })
    } else {
      txids.push(...(message.headers.txids ?? []))
    }
  }
})

const shape = new Shape(stream)
shape.subscribe(({ rows }) => {
  say({ rows, handle: stream.shapeHandle, offset: stream.lastOffset, txids, upToDate: stream.isUpToDate })
  txids = []
})

createInterface({ input: process.stdin }).on("line", async (line) => {
  try {
    await stream.requestSnapshot(JSON.parse(line))
    say({ requested: true })
  } catch (error) {
    say({ error: error.name, message: error.message })
  }
})
