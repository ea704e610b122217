import { FetchError } from "@electric-sql/client"
import { createCollection } from "@tanstack/db"
import { electricCollectionOptions } from "@tanstack/electric-db-collection"
import { SERVER, push } from "./push"

export type Todo = { id: string; title: string; done: boolean }
type Progress = { done: boolean; n: bigint }
type Mutation = { type: "insert" | "update" | "delete"; key: unknown; modified: Todo }

const shape = (table: string) => ({
  url: `${SERVER}/v1/shape`,
  params: { table },
  onError: (error: Error) => (error instanceof FetchError && error.status === 200 ? {} : undefined),
})

async function write({ transaction }: { transaction: { mutations: Mutation[] } }) {
  const rows: object[] = []
  const deletes: unknown[] = []
  for (const { type, key, modified } of transaction.mutations) {
    if (type === "delete") deletes.push(key)
    else rows.push({ id: modified.id, title: modified.title, done: modified.done })
  }
  const txid = await push({ todos: { rows, deletes } })
  // TanStack DB shows its own version of the rows until the shape has this transaction.
  if (txid !== null) return { txid, timeout: 60_000 }
}

export const todos = createCollection(
  electricCollectionOptions<Todo>({
    id: "todos",
    getKey: (todo) => todo.id,
    shapeOptions: shape("todos"),
    onInsert: write,
    onUpdate: write,
    onDelete: write,
  }),
)

export const progress = createCollection(
  electricCollectionOptions<Progress>({
    id: "progress",
    getKey: (row) => String(row.done),
    shapeOptions: shape("progress"),
  }),
)
