// Jobs spread over frames, so that a change of a thousand nodes delays no frame. A job replaces a waiting job of the
// same name.

/** Milliseconds of a frame of 16 ms that jobs may take; the browser needs the rest for layout and painting. */
const BUDGET_MS = 5;

const jobs = new Map();
let frame = 0;

export function schedule(name, job) {
  jobs.set(name, job);
  frame ||= requestAnimationFrame(runJobs);
}

function runJobs() {
  frame = 0;
  const end = performance.now() + BUDGET_MS;
  // A job that schedules itself again runs in the next frame.
  for (const name of [...jobs.keys()]) {
    const job = jobs.get(name);
    jobs.delete(name);
    job();
    if (performance.now() > end) break;
  }
  if (jobs.size) frame ||= requestAnimationFrame(runJobs);
}
