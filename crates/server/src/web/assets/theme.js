// Applies the chosen theme before the first paint; a classic script, because modules are deferred.
try {
  const theme = localStorage.getItem('ruvllm.theme');
  if (theme === 'dark' || theme === 'light') document.documentElement.dataset.theme = theme;
} catch { /* storage is blocked: the theme of the system */ }
