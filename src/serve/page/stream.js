// Requests to the server this page came from, and its server-sent events.

export class ApiError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
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
  throw new ApiError(response.status, error.message ?? `The server answered ${response.status}.`, error.code);
}

export async function getJson(path, key) {
  const response = await fetch(path, { headers: headers(key) });
  if (!response.ok) await refuse(response);
  return response.json();
}

// The events of a streamed answer, as objects, up to [DONE].
export async function* postStream(path, body, { key, signal }) {
  const response = await fetch(path, { method: 'POST', headers: headers(key), body: JSON.stringify(body), signal });
  if (!response.ok) await refuse(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError(0, 'The connection ended before the answer did.');
    held += value;
    const events = held.split('\n\n');
    held = events.pop();
    for (const event of events) {
      if (!event.startsWith('data: ')) continue; // a comment keeps the connection alive
      const data = event.slice(6);
      if (data === '[DONE]') return;
      const json = JSON.parse(data);
      if (json.error) throw new ApiError(0, json.error.message, json.error.code);
      yield json;
    }
  }
}
