// Follows one stream with the package `eventsource`, by key, and prints what it gets.
// It never closes the connection itself: the service has to say that nothing more will come.
import { EventSource } from 'eventsource'

const { TURNLOG_URL, TURNLOG_API_KEY } = process.env
const print = (what) => console.log(JSON.stringify(what))

const source = new EventSource(TURNLOG_URL + process.argv[2], {
  fetch: (url, init) => fetch(url, { ...init, headers: { ...init.headers, Authorization: `Bearer ${TURNLOG_API_KEY}` } }),
})
const types = ['started', 'delta', 'reset', 'notice', 'ended', 'message', 'reply_ended', 'renamed', 'branch', 'deleted']
for (const type of types) {
  source.addEventListener(type, (event) => print({ id: Number(event.lastEventId), type, data: JSON.parse(event.data) }))
}
const alive = setInterval(() => {}, 1000) // while it waits to connect again, EventSource does not keep Node.js running
source.addEventListener('error', (error) => {
  const closed = source.readyState === EventSource.CLOSED
  print({ error: error.code ?? null, closed })
  if (closed) clearInterval(alive)
})
