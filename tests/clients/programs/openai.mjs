// What a program does with `openai`: the first argument says what, the second is the message. Prints one object a line.
import OpenAI from 'openai'

const { TURNLOG_URL, TURNLOG_API_KEY } = process.env
const [what, input, ...rest] = process.argv.slice(2)
const client = new OpenAI({ baseURL: `${TURNLOG_URL}/openai/v1`, apiKey: TURNLOG_API_KEY, maxRetries: 0 })
const print = (said) => console.log(JSON.stringify(said))
const messages = [{ role: 'user', content: input }]

/** Prints the events of a stream; what went wrong, where it broke. */
async function heard(stream) {
  let id
  try {
    for await (const event of stream) {
      id ??= event.response?.id
      print({ type: event.type, number: event.sequence_number, text: event.delta, response: event.response })
    }
  } catch (error) {
    print({ error: error.constructor.name, code: error.code ?? null })
  }
  return id
}

async function refused(call) {
  try {
    await call()
    print({ refused: null })
  } catch (error) {
    print({ refused: error.constructor.name, status: error.status, code: error.code, param: error.param })
  }
}

const does = {
  async stream() {
    await heard(await client.responses.create({ model: 'auto', input, stream: true }))
  },
  async resume() {
    const [id, after] = rest
    await heard(await client.responses.retrieve(id, { stream: true, starting_after: Number(after) }))
  },
  async helper() {
    const stream = client.responses.stream({ model: 'auto', input })
    let text = ''
    stream.on('response.output_text.delta', (event) => { text += event.delta })
    const { id, status, output_text } = await stream.finalResponse()
    print({ id, status, text, output_text })
    const again = client.responses.stream({ response_id: id, starting_after: 4 })
    print({ again: (await again.finalResponse()).output_text })
  },
  async background() {
    let response = await client.responses.create({ model: 'auto', input, background: true })
    print(response)
    while (response.status === 'queued' || response.status === 'in_progress') {
      await new Promise((resolve) => setTimeout(resolve, 50))
      response = await client.responses.retrieve(response.id)
    }
    print(response)
    print(await client.responses.create({ model: 'auto', input: 'two', previous_response_id: response.id }))
  },
  async cancel() {
    let count = 0
    for await (const event of await client.responses.create({ model: 'auto', input, stream: true, background: true })) {
      if (event.type === 'response.output_text.delta' && ++count === 5) print(await client.responses.cancel(event.item_id.replace('item_', 'rep_')))
      if (event.type === 'response.incomplete') print(event.response)
    }
  },
  async chat() {
    const whole = await client.chat.completions.create({ model: 'auto', messages })
    print(whole)
    let text = ''
    for await (const chunk of await client.chat.completions.create({ model: 'auto', messages, stream: true, stream_options: { include_usage: true } })) {
      text += chunk.choices[0]?.delta.content ?? ''
      if (chunk.usage) print({ usage: chunk.usage, finish: chunk.choices.length })
    }
    print({ text })
    const helper = client.chat.completions.stream({ model: 'auto', messages })
    print(await helper.finalChatCompletion())
    print(await client.chat.completions.retrieve(whole.id))
  },
  async chatBroken() {
    const seen = []
    try {
      for await (const chunk of await client.chat.completions.create({ model: 'auto', messages, stream: true })) seen.push(chunk)
      print({ error: null })
    } catch (error) {
      print({ error: error.constructor.name, code: error.code ?? null, id: seen[0]?.id ?? null })
    }
  },
  async refusals() {
    const wrong = new OpenAI({ baseURL: `${TURNLOG_URL}/openai/v1`, apiKey: 'wrong', maxRetries: 0 })
    await refused(() => wrong.models.list())
    await refused(() => client.responses.create({ model: 'gpt-6', input }))
    await refused(() => client.chat.completions.create({ model: 'auto', messages, n: 2 }))
    await refused(() => client.responses.retrieve('rep_unknown'))
  },
  async models() {
    for await (const model of client.models.list()) print(model)
  },
}

await does[what]()
