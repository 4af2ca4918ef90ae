// Language and theme, remembered for all pages.

export function remembered(name) {
  try {
    return localStorage.getItem(`attend.${name}`) ?? "";
  } catch {
    return "";  // a page without storage: an exported file, a notebook
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(`attend.${name}`, value);
  } catch {
    // then it lasts as long as the page
  }
}

export function applyTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
