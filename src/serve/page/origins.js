// Where a token came from. One list, in one order, for the legend, the bars, the pipeline, the tooltip and the explanation:
// from the least computation behind a token to the most.

export const ORIGINS = [
  { kind: 's1', proposal: 1, name: 'first draft', means: 'The model guessed it after few loops, and the check at the end agreed.' },
  { kind: 's2', proposal: 2, name: 'second draft', means: 'The first guess was wrong; a second one, after more loops, was right.' },
  { kind: 's3', proposal: 3, name: 'third draft', means: 'The first two guesses were wrong, the third was right.' },
  { kind: 's4', proposal: 4, name: 'later draft', means: 'Several guesses were wrong before one was right.' },
  { kind: 'early', name: 'early draft', means: 'Its computation had started before there was a draft, from what followed the same words earlier.' },
  { kind: 's0', name: 'full computation', means: 'No guess was right: it was known only after all loops.' },
];

const BY_KIND = new Map(ORIGINS.map((origin) => [origin.kind, origin]));

// The kind of a token, or of a branch: {source: the proposal that it came from, 0 for none; early}.
export function kindOf({ source, early }) {
  if (early) return 'early';
  return `s${Math.min(source, 4)}`;
}

export function originOf(kind) {
  return BY_KIND.get(kind);
}

// Those that can occur with proposals at `depths`.
export function originsFor(depths) {
  return ORIGINS.filter(({ proposal }) => proposal === undefined || proposal <= depths.length);
}
