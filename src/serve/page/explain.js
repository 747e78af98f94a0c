// The legend, and the panel "What am I seeing?".
import { element } from './dom.js';
import { originsFor } from './origins.js';

function swatch({ kind, name }) {
  const made = element('span', `key ${kind}`);
  made.append(element('b', '', name));
  return made;
}

// How many of the loops a token of this kind took, in words.
function loops({ proposal, kind }, depths, recurrence) {
  if (kind === 's0') return `all ${recurrence}`;
  if (proposal === undefined) return 'started ahead';
  return `${depths[proposal - 1]} of ${recurrence} loops`;
}

export function showLegend(box, { depths, recurrence }) {
  const keys = originsFor(depths).map((origin) => {
    const made = swatch(origin);
    made.append(element('small', '', loops(origin, depths, recurrence)));
    return made;
  });
  box.replaceChildren(...keys);
}

export function showExplanation(box, { depths, recurrence }) {
  const first = depths[0] ?? recurrence;
  const paragraphs = [
    `This model runs the same layers in a loop: ${recurrence} times for every token (its recurrences), and each time the answer gets better. Waiting for all `
      + `${recurrence} loops before starting the next token is slow.`,
    `LoopSpec does not wait. After ${first} ${first === 1 ? 'loop' : 'loops'} the model already has a guess, a draft. The next token starts from it at once, while the `
      + 'loops of this one go on beside it. When the last loop is done, the draft is checked. If it was right, time was saved; if not, what was built on it is thrown away.',
    'So the text is exactly what the model would have written without drafts. Only the waiting is shorter. Each token is coloured by how it was found:',
  ];
  const list = element('dl', 'origins');
  for (const origin of originsFor(depths)) {
    const name = element('dt');
    name.append(swatch(origin));
    list.append(name, element('dd', '', origin.proposal ? `${origin.means} (${loops(origin, depths, recurrence)})` : origin.means));
  }
  const more = [
    `Below each answer: tokens per second; tokens per pass, which is how many tokens came out of every ${recurrence} loops that were run (1 without drafts); `
      + 'and the pipeline. There each bar is a token that is being computed and each box one loop, from left to right in time. Bars above each other run at the same time. '
      + 'Framed bars became part of the text, bars that are struck out were wrong drafts.',
    'Point at a token, or tap it, to see how sure the model was and what else it considered. “Side by side” shows the same answer with and without drafts.',
  ];
  box.replaceChildren(...paragraphs.map((text) => element('p', '', text)), list, ...more.map((text) => element('p', '', text)));
}
