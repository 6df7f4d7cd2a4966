// The peer `resumable-stream` behind a small HTTP server, with the same frames as the product's.
//
//   node resumable_stream.mjs PORT REDIS_URL
//
// POST /<id>?chunks=N&every_ms=M begins a stream and answers 201 at once; it is kept open after its last chunk.
// GET /<id>?skip=C reads it from that character on. The text lives in this process only: that is the package's design.
import { createServer } from "node:http";
import { createRequire } from "node:module";

const require = createRequire(new URL("../../clients/package.json", import.meta.url));
const { createResumableStreamContext } = require("resumable-stream/redis");
const { createClient } = require("redis");

const [port, url] = process.argv.slice(2);
const publisher = createClient({ url });
const subscriber = createClient({ url });
for (const client of [publisher, subscriber]) {
  client.on("error", (error) => console.error(`peer: redis: ${error.message}`));
}
await Promise.all([publisher.connect(), subscriber.connect()]);
const context = createResumableStreamContext({ waitUntil: null, publisher, subscriber });

// A reader that leaves makes the package's own promises fail; the server goes on.
process.on("unhandledRejection", (error) => console.error(`peer: ${error}`));

function frames(chunks, everyMs) {
  let number = 0;
  let begun = performance.now();
  return new ReadableStream({
    async pull(controller) {
      if (number === chunks) {
        await new Promise(() => {});
      }
      const due = begun + number * everyMs;
      if (due > performance.now()) {
        await new Promise((resolve) => setTimeout(resolve, due - performance.now()));
      }
      do {
        number += 1;
        controller.enqueue(`id: ${number}\nevent: delta\ndata: {"text":" word${number}"}\n\n`);
      } while (number < chunks && begun + number * everyMs <= performance.now());
    },
  });
}

createServer(async (request, response) => {
  const { pathname, searchParams } = new URL(request.url, "http://peer");
  const id = pathname.slice(1);
  if (request.method === "POST") {
    const made = () => frames(Number(searchParams.get("chunks")), Number(searchParams.get("every_ms")));
    const stream = await context.createNewResumableStream(id, made);
    response.writeHead(201).end();
    for await (const _ of stream);
    return;
  }
  const stream = await context.resumeExistingStream(id, Number(searchParams.get("skip") ?? 0));
  if (!stream) {
    response.writeHead(404).end();
    return;
  }
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  response.flushHeaders();
  const reader = stream.getReader();
  request.on("close", () => reader.cancel().catch(() => {}));
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    if (!response.write(value)) await new Promise((resolve) => response.once("drain", resolve));
  }
  response.end();
}).listen(Number(port), "127.0.0.1");
