// Reads stored UI message streams with the AI SDK's chat. Arguments: the version (6 or 7), and their folder.
// Prints what the page has at the end of each.
import { readdirSync, readFileSync } from 'node:fs'
import { basename, join } from 'node:path'

const [version, folder] = process.argv.slice(2)
const { AbstractChat, DefaultChatTransport } = await import(version === '6' ? 'ai-6' : 'ai')

class State {
  status = 'ready'
  error = undefined
  messages = []
  pushMessage = (message) => { this.messages = [...this.messages, message] }
  popMessage = () => { this.messages = this.messages.slice(0, -1) }
  replaceMessage = (index, message) => { this.messages = this.messages.with(index, this.snapshot(message)) }
  snapshot = (value) => structuredClone(value)
}

class Chat extends AbstractChat {
  constructor(options) { super({ ...options, state: new State() }) }
}

for (const name of readdirSync(folder).sort()) {
  const data = []
  let finishReason
  const fetch = async () => new Response(readFileSync(join(folder, name)), { headers: { 'Content-Type': 'text/event-stream' } })
  const chat = new Chat({
    transport: new DefaultChatTransport({ api: 'http://localhost/ai-sdk', fetch }),
    onData: (part) => data.push(part),
    onFinish: (told) => { finishReason = told.finishReason },
  })
  await chat.sendMessage({ text: 'hello' })
  const { parts, metadata } = chat.lastMessage
  const text = parts.filter((part) => part.type === 'text').map((part) => part.text).join('|')
  console.log(JSON.stringify({
    history: basename(name, '.txt'), text, status: chat.status, error: chat.error?.message ?? null,
    finishReason, metadata, data, kinds: parts.map((part) => part.type),
  }))
}
