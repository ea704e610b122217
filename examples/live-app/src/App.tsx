import { useLiveQuery } from "@tanstack/react-db"
import { type FormEvent, useState } from "react"
import { progress, todos } from "./todos"

export function App() {
  const { data, isLoading } = useLiveQuery((q) => q.from({ todo: todos }).orderBy(({ todo }) => todo.title))
  const { data: counts } = useLiveQuery((q) => q.from({ row: progress }))
  const [title, setTitle] = useState("")
  const [problem, setProblem] = useState("")

  /** A change that the server refuses is taken back by TanStack DB; say why. */
  const attempt = (change: { isPersisted: { promise: Promise<unknown> } }) => {
    setProblem("")
    change.isPersisted.promise.catch((error: Error) => setProblem(error.message))
  }
  const add = (event: FormEvent) => {
    event.preventDefault()
    const id = crypto.getRandomValues(new Uint32Array(4)).join("-")
    attempt(todos.insert({ id, title, done: false }))
    setTitle("")
  }
  const count = (done: boolean) => String(counts.find((row) => row.done === done)?.n ?? 0)

  return (
    <main>
      <h1>To do</h1>
      <form onSubmit={add}>
        <input aria-label="Title" value={title} onChange={(event) => setTitle(event.target.value)} required />
        <button>Add</button>
      </form>
      {problem && <p role="alert">{problem}</p>}
      <ul aria-busy={isLoading}>
        {data.map((todo) => (
          <li key={todo.id} className={todo.$synced ? "saved" : "saving"}>
            <label>
              <input
                type="checkbox"
                checked={todo.done}
                onChange={() => attempt(todos.update(todo.id, (draft) => void (draft.done = !draft.done)))}
              />
              {todo.title}
            </label>
            <button aria-label={`Delete ${todo.title}`} onClick={() => attempt(todos.delete(todo.id))}>
              ×
            </button>
          </li>
        ))}
      </ul>
      <p role="status">
        {count(false)} open, {count(true)} done
      </p>
    </main>
  )
}
