// A server that tells a state of ours; the page itself and everything else come from the real gateway behind it.

import http from "node:http";

/** `told`: what to answer by path; a state at "/v1/state/stream" is sent once a second. */
export async function fixtureServer(gatewayUrl, told) {
  const streams = new Set();
  const server = http.createServer((request, response) => {
    const path = decoded(request.url.split("?")[0]);
    if (path === "/v1/state/stream") return stream(response, told[path], streams);
    if (path in told) {
      response.writeHead(200, {"content-type": "application/json"});
      return response.end(JSON.stringify(told[path]));
    }
    return forward(gatewayUrl, request, response);
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  return {
    url: `http://127.0.0.1:${server.address().port}`, numStreams: () => streams.size,
    close: () => new Promise((closed) => {
      server.close(closed);
      server.closeAllConnections();
    }),
  };
}

function stream(response, state, streams) {
  streams.add(response);
  response.writeHead(200, {"content-type": "text/event-stream"});
  const send = () => response.write(`data: ${JSON.stringify(state)}\n\n`);
  send();
  const timer = setInterval(send, 1000);
  response.on("close", () => {
    clearInterval(timer);
    streams.delete(response);
  });
}

function forward(gatewayUrl, request, response) {
  const onward = http.request(new URL(request.url, gatewayUrl), {method: request.method, headers: request.headers}, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  onward.on("error", () => response.destroy());
  request.pipe(onward);
}

function decoded(path) {
  try {
    return decodeURIComponent(path);
  } catch {
    return path;
  }
}
