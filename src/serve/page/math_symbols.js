// TeX's names for signs.
const list = (text) => Object.fromEntries(text.trim().split(/[ \n]+/).map((entry) => {
  const at = entry.indexOf(':');
  return [entry.slice(0, at), entry.slice(at + 1)];
}));

export const LETTERS = list(`
  alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ lambda:λ mu:μ nu:ν xi:ξ
  omicron:ο pi:π varpi:ϖ rho:ρ varrho:ϱ sigma:σ varsigma:ς tau:τ upsilon:υ phi:ϕ varphi:φ chi:χ psi:ψ omega:ω
  Gamma:Γ Delta:Δ Theta:Θ Lambda:Λ Xi:Ξ Pi:Π Sigma:Σ Upsilon:Υ Phi:Φ Psi:Ψ Omega:Ω
  ell:ℓ hbar:ℏ imath:ı jmath:ȷ Re:ℜ Im:ℑ wp:℘ aleph:ℵ infty:∞ partial:∂ nabla:∇ emptyset:∅ varnothing:∅ degree:° angle:∠`);

// With what stands below and above them in formulas of their own line.
export const LIMITS = list(`
  sum:∑ prod:∏ coprod:∐ int:∫ iint:∬ iiint:∭ oint:∮ bigcup:⋃ bigcap:⋂ bigoplus:⨁ bigotimes:⨂ bigvee:⋁ bigwedge:⋀ bigsqcup:⨆
  lim:lim max:max min:min sup:sup inf:inf limsup:lim\u00a0sup liminf:lim\u00a0inf argmax:arg\u00a0max argmin:arg\u00a0min det:det gcd:gcd Pr:Pr`);

export const FUNCTIONS = Object.fromEntries(
  'sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan exp log ln lg dim ker deg arg hom'.split(' ').map((name) => [name, name]));

export const OPERATORS = list(`
  cdot:⋅ times:× div:÷ pm:± mp:∓ ast:∗ star:⋆ circ:∘ bullet:∙ oplus:⊕ ominus:⊖ otimes:⊗ odot:⊙ setminus:∖ cup:∪ cap:∩ vee:∨ wedge:∧
  lor:∨ land:∧ neg:¬ lnot:¬ forall:∀ exists:∃ nexists:∄ top:⊤ bot:⊥ vdash:⊢ models:⊨
  le:≤ leq:≤ leqslant:⩽ ge:≥ geq:≥ geqslant:⩾ ne:≠ neq:≠ ll:≪ gg:≫ lt:< gt:> equiv:≡ sim:∼ simeq:≃ approx:≈ cong:≅ propto:∝ asymp:≍ doteq:≐
  in:∈ notin:∉ ni:∋ subset:⊂ supset:⊃ subseteq:⊆ supseteq:⊇ subsetneq:⊊ parallel:∥ perp:⊥ mid:∣ nmid:∤ prec:≺ succ:≻ preceq:⪯ succeq:⪰
  to:→ rightarrow:→ leftarrow:← gets:← leftrightarrow:↔ Rightarrow:⇒ Leftarrow:⇐ Leftrightarrow:⇔ implies:⟹ impliedby:⟸ iff:⟺ mapsto:↦
  longrightarrow:⟶ longleftarrow:⟵ Longrightarrow:⟹ hookrightarrow:↪ uparrow:↑ downarrow:↓ updownarrow:↕ nearrow:↗ searrow:↘ rightharpoonup:⇀
  xrightarrow:→ dots:… ldots:… cdots:⋯ vdots:⋮ ddots:⋱ dotsc:… dotsb:⋯ colon:: coloneqq:≔ prime:′ backslash:\\ square:□ Box:□ blacksquare:■ qed:□
  triangle:△ diamond:⋄ checkmark:✓ dagger:† ddagger:‡ therefore:∴ because:∵ lhd:⊲ rhd:⊳ bowtie:⋈ surd:√`);

export const DELIMITERS = list(`
  {:{ }:} lbrace:{ rbrace:} langle:⟨ rangle:⟩ lfloor:⌊ rfloor:⌋ lceil:⌈ rceil:⌉ |:‖ Vert:‖ vert:| lvert:| rvert:| lVert:‖ rVert:‖ lbrack:[ rbrack:]`);

export const SPACES = {
  ',': '0.1667em', ':': '0.2222em', '>': '0.2222em', ';': '0.2778em', ' ': '0.25em', '\n': '0.25em', '!': '-0.1667em',
  quad: '1em', qquad: '2em', thinspace: '0.1667em', enspace: '0.5em',
};

export const ACCENTS = {
  hat: { sign: '^' }, widehat: { sign: '^', stretchy: true }, bar: { sign: '¯' }, overline: { sign: '¯', stretchy: true },
  vec: { sign: '→' }, overrightarrow: { sign: '→', stretchy: true }, tilde: { sign: '~' }, widetilde: { sign: '~', stretchy: true },
  dot: { sign: '˙' }, ddot: { sign: '¨' }, check: { sign: 'ˇ' }, breve: { sign: '˘' }, acute: { sign: '´' }, grave: { sign: '`' },
  overbrace: { sign: '⏞', stretchy: true }, underbrace: { sign: '⏟', stretchy: true, under: true }, underline: { sign: '_', stretchy: true, under: true },
};

// First code points of alphabets; `others` are letters that Unicode had before.
export const VARIANTS = {
  bf: { upper: 0x1d400, lower: 0x1d41a, digit: 0x1d7ce },
  cal: { upper: 0x1d49c, lower: 0x1d4b6, others: { B: 'ℬ', E: 'ℰ', F: 'ℱ', H: 'ℋ', I: 'ℐ', L: 'ℒ', M: 'ℳ', R: 'ℛ', e: 'ℯ', g: 'ℊ', o: 'ℴ' } },
  frak: { upper: 0x1d504, lower: 0x1d51e, others: { C: 'ℭ', H: 'ℌ', I: 'ℑ', R: 'ℜ', Z: 'ℨ' } },
  bb: { upper: 0x1d538, lower: 0x1d552, digit: 0x1d7d8, others: { C: 'ℂ', H: 'ℍ', N: 'ℕ', P: 'ℙ', Q: 'ℚ', R: 'ℝ', Z: 'ℤ' } },
  sf: { upper: 0x1d5a0, lower: 0x1d5ba, digit: 0x1d7e2 },
  tt: { upper: 0x1d670, lower: 0x1d68a, digit: 0x1d7f6 },
};
