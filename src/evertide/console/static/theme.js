// Light or dark, before anything is drawn. Not a module: a module would run too late, and the page would flash.
try {
  const chosen = localStorage.getItem("evertide.theme")
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen
} catch {
  // A browser without storage shows what the system prefers.
}
