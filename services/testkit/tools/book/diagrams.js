// Draws the diagrams of a page, in the colours of the reader's theme.
const dark = ["navy", "coal", "ayu"].some((theme) => document.documentElement.classList.contains(theme));
mermaid.initialize({ startOnLoad: true, theme: dark ? "dark" : "default" });
