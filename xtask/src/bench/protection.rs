//! Cost of TLS and encryption at rest, in one run: `tls` and `encryption`, each cell alternating
//! with the same one without, and a verdict for every bar. A missed bar is an error.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{Options, encryption, tls};
use cairn_testkit::workspace;

/// Required and measured throughput relative to that without protection.
#[derive(Serialize)]
pub(super) struct Bar {
    /// Name: verb, size, connections and kind of protection.
    pub(super) name: String,
    pub(super) wanted: f64,
    /// Median, minimum and maximum of the rounds' ratios.
    pub(super) median: f64,
    pub(super) lowest: f64,
    pub(super) highest: f64,
}

impl Bar {
    /// Evaluates ratios; `None` without any.
    pub(super) fn of(name: String, wanted: f64, mut ratios: Vec<f64>) -> Option<Bar> {
        ratios.sort_by(f64::total_cmp);
        Some(Bar {
            name,
            wanted,
            median: *ratios.get(ratios.len() / 2)?,
            lowest: *ratios.first()?,
            highest: *ratios.last()?,
        })
    }

    pub(super) fn is_met(&self) -> bool {
        self.median >= self.wanted
    }

    pub(super) fn verdict(&self) -> String {
        match self.is_met() {
            true => format!("at least {}", self.wanted),
            false => format!("less than {}", self.wanted),
        }
    }
}

pub(super) fn run(options: &Options) -> Result<()> {
    let mut bars = tls::measure(options)?;
    bars.extend(encryption::measure(options)?);
    println!(
        "\n| of the same without | median | rounds | wanted | |\n|---|---:|---:|---:|---|\n{}",
        lines(&bars)
    );
    workspace::keep("bench-protection", "bench.json", &bars)?;
    let missed = bars.iter().filter(|bar| !bar.is_met()).count();
    ensure!(missed == 0, "{missed} of {} bars missed", bars.len());
    Ok(())
}

fn lines(bars: &[Bar]) -> String {
    let line = |bar: &Bar| {
        format!(
            "| {} | {:.2} | {:.2} to {:.2} | {} | {} |",
            bar.name,
            bar.median,
            bar.lowest,
            bar.highest,
            bar.wanted,
            if bar.is_met() { "met" } else { "missed" }
        )
    };
    bars.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_rounds_counts() {
        let bar = |ratios: &[f64]| Bar::of("GET".into(), 0.6, ratios.to_vec());
        let met = bar(&[0.9, 0.1, 0.6]).unwrap();
        assert_eq!((met.lowest, met.median, met.highest), (0.1, 0.6, 0.9));
        assert!(met.is_met());
        let missed = bar(&[0.9, 0.1, 0.59]).unwrap();
        assert_eq!(missed.verdict(), "less than 0.6");
        assert!(lines(&[met, missed]).ends_with("0.10 to 0.90 | 0.6 | missed |"));
        assert!(bar(&[]).is_none());
    }
}
