// Follows a stream with `@durable-streams/client` and prints what it gets, then how it stands; a connection
// that breaks is made again from the last offset.
// Arguments: the path, the mode (sse, long-poll or catch-up), and the offset to begin after.
import { stream } from '@durable-streams/client'

const { TURNLOG_URL, TURNLOG_API_KEY } = process.env
const [path, mode, offset] = process.argv.slice(2)
const print = (what) => console.log(JSON.stringify(what))

let at = offset
async function follow() {
  const response = await stream({
    url: TURNLOG_URL + path,
    headers: { Authorization: `Bearer ${TURNLOG_API_KEY}` },
    live: mode === 'catch-up' ? false : mode,
    offset: at,
  })
  response.subscribeJson(async (batch) => {
    for (const { offset: id, type, ...data } of batch.items) print({ id, type, data })
    at = batch.offset
  })
  await response.closed
  print({ final: true, closed: response.streamClosed, offset: response.offset })
}

for (;;) {
  try {
    await follow()
    break
  } catch (error) {
    print({ error: error.status ?? null, code: error.code ?? error.name, after: at })
    if (error.status || error.code === 'NOT_FOUND') break // an answer; anything else is a connection that broke
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}
