// Small helpers for elements. Text goes in as text nodes: nothing here or elsewhere in the page reads a string as HTML.

export const $ = (id) => document.getElementById(id);

export function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

export function button(className, text, action) {
  const made = element('button', className, text);
  made.type = 'button';
  made.addEventListener('click', action);
  return made;
}

// A button that copies `text()` and says so for a moment.
export function copyButton(text, className = 'tool') {
  const made = button(className, 'Copy', async () => {
    made.textContent = await copy(text()) ? 'Copied' : 'Not allowed';
    setTimeout(() => { made.textContent = 'Copy'; }, 1500);
  });
  return made;
}

// navigator.clipboard exists only on https and localhost; elsewhere a selection is copied the old way.
async function copy(text) {
  try {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return true;
    }
  } catch {
    // not allowed: try the old way
  }
  const box = element('textarea', 'hidden');
  box.value = text;
  document.body.append(box);
  box.select();
  const done = document.execCommand('copy');
  box.remove();
  return done;
}

// Hands the browser a file to save.
export function download(name, type, text) {
  const link = element('a');
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString('en')} ${number === 1 ? one : many}`;
}

// A wait, in words that can be read at a glance.
export function duration(milliseconds) {
  return milliseconds < 10_000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
}
