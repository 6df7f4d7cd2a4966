// A page with the AI SDK's chat. Arguments: the version (6 or 7), the chat's id, and "resets" where the page says by the
// header x-ai-sdk-version that it can take them. It reads commands, one JSON object a line:
//   {"do": "send", "text": …, "messageId": …}   messageId: edits that message
//   {"do": "regenerate", "messageId": …}, {"do": "resume"}, {"do": "leave"}
//   {"do": "load", "messages": […]}             as a page does that kept them
// and prints {"shown": text} whenever the newest message grows, {"data": …} of a data part, {"finished": …}, and at the
// end of each command {"done": command, "status", "error", "messages"}.
import { createInterface } from 'node:readline'

const { TURNLOG_URL, TURNLOG_API_KEY } = process.env
const [version, id, resets] = process.argv.slice(2)
const { AbstractChat, DefaultChatTransport } = await import(version === '6' ? 'ai-6' : 'ai')
const print = (what) => console.log(JSON.stringify(what))
const textOf = (message) => message.parts.filter((part) => part.type === 'text').map((part) => part.text).join('|')

class State {
  status = 'ready'
  error = undefined
  messages = []
  pushMessage = (message) => { this.messages = [...this.messages, message]; this.#show(message) }
  popMessage = () => { this.messages = this.messages.slice(0, -1) }
  replaceMessage = (index, message) => { this.messages = this.messages.with(index, this.snapshot(message)); this.#show(message) }
  snapshot = (value) => structuredClone(value)
  #show(message) { if (message.role === 'assistant') print({ shown: textOf(message), id: message.id }) }
}

class Chat extends AbstractChat {
  constructor(options) { super({ ...options, state: new State() }) }
}

const chat = new Chat({
  id,
  transport: new DefaultChatTransport({
    api: `${TURNLOG_URL}/ai-sdk`,
    headers: { Authorization: `Bearer ${TURNLOG_API_KEY}`, ...(resets ? { 'x-ai-sdk-version': version } : {}) },
    body: { temperature: 0.5 },
  }),
  onData: (part) => print({ data: part }),
  onFinish: ({ isAbort, isError, isDisconnect, finishReason }) => print({ finished: { isAbort, isError, isDisconnect, finishReason } }),
})

const commands = {
  send: ({ text, messageId }) => chat.sendMessage({ text, messageId }),
  regenerate: ({ messageId }) => chat.regenerate(messageId ? { messageId } : {}),
  resume: () => chat.resumeStream(),
  leave: () => chat.stop(),
  load: ({ messages }) => { chat.messages = messages },
}

const running = []
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line)
  running.push(Promise.resolve(commands[command.do](command)).then(() => {
    const { status, error, messages } = chat
    const told = messages.map((message) => ({ id: message.id, role: message.role, text: textOf(message), metadata: message.metadata }))
    print({ done: command.do, status, error: error ? `${error.name}: ${error.message}` : null, messages: told })
  }, (error) => print({ done: command.do, thrown: String(error) })))
}
await Promise.all(running)
