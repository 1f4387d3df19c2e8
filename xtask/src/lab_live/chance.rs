//! Statistical bounds of counts: four standard deviations of a normal distribution, whose two tails
//! have a probability of 1 in 15,787.

/// Probability of one tail beyond four standard deviations.
const TAIL: f64 = 3.167e-5;

/// Is `count` of `of` draws plausible with probability `share`? Uses the exact binomial tail, which
/// is valid for small counts too.
pub(super) fn is_likely(count: u64, of: u64, share: f64) -> bool {
    if share <= 0.0 || of == 0 {
        return count == 0;
    }
    if share >= 1.0 {
        return count == of;
    }
    let at = count as f64;
    let upper = at > of as f64 * share;
    // The terms decrease from here on, outwards.
    let mut term = log_binomial(count, of, share).exp();
    let (mut tail, mut k) = (0.0, count);
    let odds = share / (1.0 - share);
    while term > TAIL * 1e-9 && tail <= TAIL {
        tail += term;
        if upper {
            if k == of {
                break;
            }
            term *= (of - k) as f64 / (k + 1) as f64 * odds;
            k += 1;
        } else {
            if k == 0 {
                break;
            }
            term *= k as f64 / (of - k + 1) as f64 / odds;
            k -= 1;
        }
    }
    tail > TAIL
}

/// Logarithm of the probability of exactly `count` of `of`.
fn log_binomial(count: u64, of: u64, share: f64) -> f64 {
    let fewer = count.min(of - count);
    let ways: f64 = (1..=fewer)
        .map(|i| ((of - fewer + i) as f64 / i as f64).ln())
        .sum();
    ways + count as f64 * share.ln() + (of - count) as f64 * (1.0 - share).ln()
}

/// Is `mean` plausible for `n` draws with the given expected value and standard deviation?
pub(super) fn is_mean(mean: f64, n: usize, expected: f64, deviation: f64) -> bool {
    (mean - expected).abs() <= 4.0 * deviation / (n as f64).sqrt() + 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_deviations() {
        // 10,000 draws with probability one half: the deviation is 50.
        for (count, likely) in [
            (5000, true),
            (5199, true),
            (4801, true),
            (5203, false),
            (4797, false),
        ] {
            assert_eq!(is_likely(count, 10_000, 0.5), likely, "{count}");
        }
    }

    #[test]
    fn few_draws() {
        // All of twenty with probability one half: one in a million.
        assert!(!is_likely(20, 20, 0.5));
        assert!(is_likely(18, 20, 0.5));
        // None of four hundred with one hundredth: e^-4; with one twentieth: e^-20.
        assert!(is_likely(0, 400, 0.01));
        assert!(!is_likely(0, 400, 0.05));
        assert!(is_likely(0, 10, 0.0) && !is_likely(1, 10, 0.0));
    }
}
