// Applies the chosen colours before the page is drawn. Not a module: a module runs later, and the page would flash.
try {
  const chosen = localStorage.getItem("evertide.theme")
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen
} catch {
  // A browser without storage shows what the system prefers.
}
