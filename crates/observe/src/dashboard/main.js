// ---- the page itself ----

const wanted = new URLSearchParams(location.hash.slice(1)).get("run");
// The address need not show the token once the cookie is there.
if (location.search.includes("token=")) history.replaceState(null, "", "/");
at("title").textContent = TEXT.title;
at("help").textContent = TEXT.help;
at("language").textContent = OTHER.name;
at("language").href = `/?lang=${OTHER.code}`;
at("language").lang = OTHER.code;
at("language").addEventListener("click", (event) => { if (chosen.length) event.target.href = `/?lang=${OTHER.code}#run=${encodeURIComponent(chosen[0])}`; });
at("new").textContent = START.title;
at("new").addEventListener("click", () => openStart().catch((error) => notice(error.message)));
addEventListener("resize", () => show());
dark.addEventListener("change", () => { shownFor = ""; show(); });
list().then((runs) => {
  const newest = runs.reduce((best, run) => (best === null || run.status.silent_s < best.status.silent_s ? run : best), null);
  const first = runs.find((run) => run.name === wanted) || newest;
  if (first) only(first.name);
  else openStart();
});
// One that was being prepared when it was chosen has curves by now.
setInterval(() => list().then(() => { if (chosen.some((name) => !data.has(name))) showChosen(); }).catch(() => {}), 3000);
