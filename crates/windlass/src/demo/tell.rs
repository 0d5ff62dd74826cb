//! Tells events: as text for people, or as JSON for machines.

use anyhow::Result;

use super::event::{Container, Counts, Event};
use crate::{
    commands::{device_table, sources},
    screen::{Paint, Tone, line},
};

/// Tells events.
#[derive(Clone, Copy, Debug)]
pub(super) enum Teller {
    Text(Paint),
    Json,
}

// === impl Teller ===

impl Teller {
    pub(super) fn tell(self, event: &Event) -> Result<()> {
        match self {
            Self::Json => line(serde_json::to_string(event)?)?,
            Self::Text(paint) => {
                for text in sentences(event, paint) {
                    line(text)?;
                }
            }
        }
        Ok(())
    }
}

fn sentences(event: &Event, paint: Paint) -> Vec<String> {
    match event {
        Event::Started { machine, description, dir, .. } => vec![
            paint.text(Tone::Strong, format!("Windlass demo on {machine}: {description}")),
            paint.text(
                Tone::Notable,
                "The machine is SIMULATED; the agent, its gRPC and its driver calls are real.",
            ),
            paint.text(Tone::Quiet, format!("in {}", dir.display())),
        ],
        Event::Discovered { inventory, took_ms } => {
            let mut lines = heading(paint, "Discovered", Some(*took_ms));
            lines.extend(sources(inventory, paint).iter().map(|text| format!("  {text}")));
            lines.push(String::new());
            lines.extend(device_table(inventory).lines("  "));
            lines
        }
        Event::Topology { matrix } => {
            let mut lines = heading(paint, "Topology", None);
            lines.extend(matrix.iter().map(|text| format!("  {text}")));
            lines.extend(heading(paint, "Registered with the kubelet", None));
            lines
        }
        Event::Registered { resource, capacity, allocatable, took_ms } => vec![format!(
            "  {} {resource}: {capacity} devices, {allocatable} allocatable {}",
            paint.text(Tone::Good, "ok"),
            paint.text(Tone::Quiet, format!("({took_ms} ms after the agent started)")),
        )],
        other => later_sentences(other, paint),
    }
}

fn later_sentences(event: &Event, paint: Paint) -> Vec<String> {
    match event {
        Event::PodAdmitted { pod, containers, took_ms } => {
            pod_admitted(pod, containers, *took_ms, paint)
        }
        Event::PodRefused { pod, reason, message } => vec![
            format!(
                "  {} pod {pod} is refused, as it has to be: {reason}",
                paint.text(Tone::Good, "ok")
            ),
            paint.text(Tone::Quiet, format!("       {message}")),
        ],
        Event::Fault { device, fault } => {
            let mut lines = heading(paint, "A GPU fails", None);
            lines.push(format!(
                "  {} the driver reports {fault} on {device}",
                paint.text(Tone::Notable, "!!")
            ));
            lines
        }
        Event::Unhealthy { device, why, counts, held_by, took_ms } => vec![
            format!(
                "  {} {device} is {} {}",
                paint.text(Tone::Good, "ok"),
                paint.text(Tone::Bad, why),
                quiet_ms(paint, *took_ms)
            ),
            format!(
                "       {}{}",
                counted(counts),
                held_by.as_ref().map_or_else(String::new, |pod| format!(
                    "; pod {pod} goes on and shows it in its status"
                ))
            ),
        ],
        Event::Waiting { device, quiet_ms } => vec![format!(
            "  .. {device} was reset; it must pass its probe after {quiet_ms} ms without trouble"
        )],
        Event::Recovered { device, counts, took_ms } => vec![
            format!(
                "  {} {device} is {} again {}",
                paint.text(Tone::Good, "ok"),
                paint.text(Tone::Good, "Healthy"),
                quiet_ms(paint, *took_ms)
            ),
            format!("       {}", counted(counts)),
        ],
        other => last_sentences(other, paint),
    }
}

fn last_sentences(event: &Event, paint: Paint) -> Vec<String> {
    match event {
        Event::KubeletRestarted { resources, pods, devices_held, took_ms } => {
            let mut lines = heading(paint, "The kubelet restarts and deletes every socket", None);
            lines.push(format!(
                "  {} {resources} resources registered again, {pods} pods hold their {devices_held} devices as before {}",
                paint.text(Tone::Good, "ok"),
                quiet_ms(paint, *took_ms)
            ));
            lines
        }
        Event::Finished { steps, pods, took_ms } => vec![
            String::new(),
            paint.text(
                Tone::Strong,
                format!(
                    "All {steps} steps happened, {pods} pods served, in {:.1} s.",
                    took_ms / 1000.0
                ),
            ),
        ],
        Event::Kept { paths, commands } => {
            let mut lines = heading(paint, "Everything keeps running until Ctrl-C", None);
            lines.extend(
                paths.iter().map(|(what, path)| format!("  {what:<15} {}", path.display())),
            );
            lines.push(String::new());
            lines.extend(commands.iter().map(|command| format!("  {command}")));
            lines
        }
        _ => Vec::new(),
    }
}

fn pod_admitted(pod: &str, containers: &[Container], took_ms: f64, paint: Paint) -> Vec<String> {
    let mut lines = vec![String::new()];
    lines.push(format!(
        "  {} pod {} admitted {}",
        paint.text(Tone::Good, "ok"),
        paint.text(Tone::Strong, pod),
        quiet_ms(paint, took_ms)
    ));
    for container in containers {
        let Container { name, resource, devices, why, compared, .. } = container;
        let sets = compared.map_or_else(String::new, |sets| format!(" (best of {sets})"));
        lines.push(format!(
            "       {name}: {} x {resource} = {}",
            devices.len(),
            devices.join(" ")
        ));
        lines.push(format!("         why   {why}{sets}"));
        lines.push(format!("         gets  {}", container.device_nodes.join(" ")));
        let cdi = container.cdi_devices.join(" ");
        lines.push(paint.text(Tone::Quiet, format!("         by    {cdi}")));
    }
    lines
}

fn counted(counts: &Counts) -> String {
    let Counts { resource, capacity, allocatable } = counts;
    format!("{resource}: {allocatable} of {capacity} allocatable")
}

fn heading(paint: Paint, text: &str, took_ms: Option<f64>) -> Vec<String> {
    let took = took_ms.map_or_else(String::new, |ms| format!(" {}", quiet_ms(paint, ms)));
    vec![String::new(), format!("{}{took}", paint.text(Tone::Strong, text))]
}

fn quiet_ms(paint: Paint, ms: f64) -> String {
    paint.text(Tone::Quiet, format!("({ms} ms)"))
}
