//! Latency histogram over the full range: an HdrHistogram of nanoseconds with three significant
//! digits.
//!
//! Its JSON form is the base64 of HdrHistogram's V2+DEFLATE encoding, as in `.hlog` files.

use std::cell::RefCell;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer as HdrReader, Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize, de::Error};

/// Counts by latency. Merging is exact: every count stays in its bucket.
#[derive(Debug, Clone)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

/// Maximum recorded latency: 24 hours.
const LATENCY_MAX_NS: u64 = 24 * 3600 * 1_000_000_000;

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    #[expect(clippy::expect_used, reason = "the digits are ours")]
    pub fn new() -> Self {
        let mut histogram = Histogram::new(3).expect("three digits are allowed");
        histogram.auto(true);
        Self { histogram }
    }

    #[inline]
    pub fn record(&mut self, ns: u64) {
        // The histogram resizes itself and the value is bounded, so this cannot fail.
        let _ = self.histogram.record(ns.min(LATENCY_MAX_NS));
    }

    pub fn merge(&mut self, other: &Self) {
        if other.count() > 0 {
            // The histogram resizes itself.
            let _ = self.histogram.add(&other.histogram);
        }
    }

    /// Removes all counts and keeps the memory.
    pub fn clear(&mut self) {
        self.histogram.reset();
    }

    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    pub fn is_empty(&self) -> bool {
        self.histogram.is_empty()
    }

    pub fn min(&self) -> u64 {
        if self.is_empty() {
            0
        } else {
            self.histogram.min()
        }
    }

    pub fn max(&self) -> u64 {
        self.histogram.max()
    }

    pub fn mean(&self) -> f64 {
        self.histogram.mean()
    }

    pub fn stdev(&self) -> f64 {
        self.histogram.stdev()
    }

    /// The latency not exceeded by `percent` (0 to 100) of the requests; 0 without requests.
    pub fn percentile(&self, percent: f64) -> u64 {
        self.histogram
            .value_at_quantile(percent / 100.0)
            .min(self.histogram.max())
    }

    /// Points of the cumulative distribution: latency, and the fraction (0 to 1) not exceeding it.
    pub fn distribution(&self) -> Vec<(u64, f64)> {
        let total = self.count().max(1) as f64;
        let mut seen = 0;
        self.histogram
            .iter_recorded()
            .map(|step| {
                seen += step.count_at_value();
                (step.value_iterated_to(), seen as f64 / total)
            })
            .collect()
    }

    /// Counts by bucket: its highest latency, and the count.
    pub fn counts(&self) -> Vec<(u64, u64)> {
        self.histogram
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect()
    }

    /// The histogram itself, for `.hlog` files and other uses.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    #[expect(
        clippy::expect_used,
        reason = "a vector takes all that is written to it"
    )]
    fn to_text(&self) -> String {
        thread_local! {
            static WRITER: RefCell<V2DeflateSerializer> = RefCell::new(V2DeflateSerializer::new());
        }
        let mut bytes = Vec::new();
        WRITER.with_borrow_mut(|writer| {
            writer
                .serialize(&self.histogram, &mut bytes)
                .expect("memory takes it")
        });
        STANDARD.encode(bytes)
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let bytes = STANDARD.decode(text).map_err(|error| error.to_string())?;
        let mut histogram: Histogram<u64> = HdrReader::new()
            .deserialize(&mut &bytes[..])
            .map_err(|error| error.to_string())?;
        histogram.auto(true);
        Ok(Self { histogram })
    }
}

impl PartialEq for Latencies {
    fn eq(&self, other: &Self) -> bool {
        self.histogram == other.histogram
    }
}

impl Serialize for Latencies {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_empty() {
            return serializer.serialize_str("");
        }
        serializer.serialize_str(&self.to_text())
    }
}

impl<'de> Deserialize<'de> for Latencies {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(Self::new());
        }
        Self::from_text(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_is_exact_and_json_keeps_all() {
        let (mut a, mut b, mut both) = (Latencies::new(), Latencies::new(), Latencies::new());
        for n in 0..10_000u64 {
            let ns = n * n * 37;
            both.record(ns);
            if n % 3 == 0 {
                a.record(ns)
            } else {
                b.record(ns)
            }
        }
        a.merge(&b);
        assert_eq!(a, both);
        let text = serde_json::to_string(&a).unwrap();
        let back: Latencies = serde_json::from_str(&text).unwrap();
        assert_eq!(back, both);
        assert_eq!(serde_json::to_string(&Latencies::new()).unwrap(), "\"\"");
        assert!(serde_json::from_str::<Latencies>("\"nonsense\"").is_err());
    }

    #[test]
    fn percentiles_are_close() {
        let mut latencies = Latencies::new();
        for ns in 1..=100_000u64 {
            latencies.record(ns * 1000);
        }
        for percent in [50.0, 95.0, 99.0, 99.9] {
            let expected = percent * 1_000_000.0;
            let off = (latencies.percentile(percent) as f64 - expected).abs() / expected;
            assert!(off < 0.001, "{percent}: {off}");
        }
    }
}
