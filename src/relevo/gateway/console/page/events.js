// Server-sent events out of a fetched body: the browser's EventSource sends no Authorization header. Source: WHATWG
// HTML, section "Server-sent events"; only data fields are of use here.

const MAX_UNREAD = 32 * 2 ** 20;  // characters of one event; arbitrary, far more than a server of a thousand workers tells

export class Silence extends Error {}

/** The data of each event. Throws Silence where nothing comes for `silenceMs`. */
export async function* events(response, silenceMs = Infinity) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  try {
    for (;;) {
      const {done, value} = await within(silenceMs, reader.read());
      if (done) return;
      unread += value;
      const whole = unread.split(/\r?\n\r?\n/);
      unread = whole.pop();
      if (unread.length > MAX_UNREAD) throw new Error("an event is too long");
      for (const event of whole) {
        const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
        if (data.length) yield data.join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function within(limitMs, promise) {
  if (limitMs === Infinity) return promise;
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Silence("nothing came")), limitMs);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
