// Requests to the server this page came from, and its server-sent events.

const ANSWER_LIMIT = 10_000; // milliseconds for a short answer
const QUIET = 15_000; // a stream that says nothing for so long is asked after; the server itself speaks more often

export class ApiError extends Error {
  constructor(status, message, { code, param } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
  }
}

// Nobody answered: the server is gone, or does not move.
export class Unreachable extends Error {
  constructor() {
    super('The server does not answer.');
  }
}

function headers(key) {
  const result = { 'Content-Type': 'application/json' };
  if (key) result.Authorization = `Bearer ${key}`;
  return result;
}

async function refuse(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // an answer of somebody in between
  }
  throw new ApiError(response.status, error.message ?? `The server answered ${response.status}.`, error);
}

// GET, or POST with a body.
export async function getJson(path, key, body) {
  try {
    const response = await fetch(path, {
      headers: headers(key), signal: AbortSignal.timeout(ANSWER_LIMIT), cache: 'no-store',
      ...(body ? { method: 'POST', body: JSON.stringify(body) } : {}),
    });
    if (!response.ok) await refuse(response);
    return await response.json();
  } catch (error) {
    throw error instanceof ApiError ? error : new Unreachable();
  }
}

// Whether anybody is there: any answer will do.
export async function alive() {
  try {
    await fetch('/health', { signal: AbortSignal.timeout(ANSWER_LIMIT / 2), cache: 'no-store' });
    return true;
  } catch {
    return false;
  }
}

// Waits for `promise`; asks now and then whether the server is still there.
async function patiently(promise) {
  for (;;) {
    let timer;
    const quiet = new Promise((resolve) => { timer = setTimeout(resolve, QUIET, patiently); });
    const first = await Promise.race([promise, quiet]).finally(() => clearTimeout(timer));
    if (first !== patiently) return first;
    if (!await alive()) throw new Unreachable();
  }
}

// The events of a streamed answer, as objects, up to [DONE].
export async function* postStream(path, body, { key, signal }) {
  const own = new AbortController();
  signal.addEventListener('abort', () => own.abort());
  try {
    const response = await patiently(fetch(path, { method: 'POST', headers: headers(key), body: JSON.stringify(body), signal: own.signal }));
    if (!response.ok) await refuse(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let held = '';
    for (;;) {
      const { value, done } = await patiently(reader.read());
      if (done) throw new Unreachable(); // the connection ended before the answer did
      held += value;
      const events = held.split('\n\n');
      held = events.pop();
      for (const event of events) {
        if (!event.startsWith('data: ')) continue; // a comment keeps the connection alive
        const data = event.slice(6);
        if (data === '[DONE]') return;
        const json = JSON.parse(data);
        if (json.error) throw new ApiError(0, json.error.message, json.error);
        yield json;
      }
    }
  } catch (error) {
    throw error instanceof ApiError || signal.aborted ? error : new Unreachable();
  } finally {
    own.abort();
  }
}
