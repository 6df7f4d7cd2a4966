// Follows one stream with the package `eventsource` by a ticket, as a browser would: without any header of its own.
// When the ticket has expired, it asks for a new one and goes on after the last event that it has.
import { EventSource } from 'eventsource'

const { TURNLOG_URL, TURNLOG_API_KEY } = process.env
const id = process.argv[2]
const print = (what) => console.log(JSON.stringify(what))
let last = 0

async function ticket() {
  const answer = await fetch(`${TURNLOG_URL}/v1/tickets`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${TURNLOG_API_KEY}`, 'Content-Type': 'application/json' },
    body: JSON.stringify({ id }),
  })
  return (await answer.json()).events_url
}

async function follow() {
  const source = new EventSource(`${TURNLOG_URL}${await ticket()}&after=${last}`)
  const alive = setInterval(() => {}, 1000)
  for (const type of ['started', 'delta', 'reset', 'notice', 'ended']) {
    source.addEventListener(type, (event) => {
      last = Number(event.lastEventId)
      print({ id: last, type, data: JSON.parse(event.data) })
      if (type === 'ended') {
        source.close()
        clearInterval(alive)
      }
    })
  }
  source.addEventListener('error', (error) => {
    print({ error: error.code ?? null })
    if (source.readyState !== EventSource.CLOSED) return // it connects again by itself
    clearInterval(alive)
    if (error.code === 401) follow()
  })
}

await follow()
