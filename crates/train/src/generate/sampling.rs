//! Which token comes next: a pure function of logits, settings and a number drawn from a counter. The same seed draws the
//! same numbers on any device, for any number of threads and in any company.

use std::cmp::Ordering;

use plimsoll_runtime::mix;

/// How tokens are chosen, in the order in which it is applied.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Logits of tokens that are there already are divided by it, or multiplied where they are below zero.
    pub repetition_penalty: f32,
    /// 0: always the likeliest token.
    pub temperature: f32,
    /// Only so many of the likeliest tokens.
    pub top_k: Option<usize>,
    /// Only the likeliest tokens that together have this probability.
    pub top_p: f32,
    pub seed: u64,
}

impl Sampling {
    pub const GREEDY: Self = Self { repetition_penalty: 1.0, temperature: 0.0, top_k: None, top_p: 1.0, seed: 0 };

    /// A number in [0, 1) for the `token`th new token of a text.
    fn draw(&self, text: u64, token: u64) -> f64 {
        let bits = mix(mix(mix(self.seed ^ 0x7e47) ^ text.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(token));
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The next token of the text of this number, after `before` and with `new` tokens of its own. `None` where a logit is
    /// not a number.
    pub fn choose(&self, logits: &mut [f32], before: &[u32], text: u64, new: u64) -> Option<u32> {
        if logits.is_empty() || logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            return None;
        }
        self.penalize(logits, before);
        if self.temperature == 0.0 {
            return Some(likeliest(logits));
        }
        let mut weights = Weights::new(logits, self.temperature);
        let kept = weights.keep(self.top_k, f64::from(self.top_p));
        Some(weights.at(kept, self.draw(text, new)))
    }

    /// Each token that occurs counts once, however often it does.
    fn penalize(&self, logits: &mut [f32], before: &[u32]) {
        if self.repetition_penalty == 1.0 {
            return;
        }
        let mut tokens = before.to_vec();
        tokens.sort_unstable();
        tokens.dedup();
        for token in tokens {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            *logit = if *logit < 0.0 { *logit * self.repetition_penalty } else { *logit / self.repetition_penalty };
        }
    }
}

/// Of equally likely ones the first.
fn likeliest(logits: &[f32]) -> u32 {
    let larger = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
    (0..logits.len()).fold(0, larger) as u32
}

/// Tokens with their probabilities times some factor, likeliest first as far as somebody has asked.
struct Weights {
    tokens: Vec<(f64, u32)>,
    total: f64,
}

/// How many tokens are brought into order at first; as many times more each time that is not enough.
const ORDERED_FIRST: usize = 256;

impl Weights {
    fn new(logits: &[f32], temperature: f32) -> Self {
        let largest = f64::from(logits[likeliest(logits) as usize]);
        let weight = |logit: f32| ((f64::from(logit) - largest) / f64::from(temperature)).exp();
        let tokens: Vec<(f64, u32)> = logits.iter().zip(0..).map(|(&logit, token)| (weight(logit), token)).collect();
        let total = tokens.iter().map(|(weight, _)| weight).sum();
        Self { tokens, total }
    }

    /// Likelier first, and of equally likely ones the first.
    fn order(a: &(f64, u32), b: &(f64, u32)) -> Ordering {
        b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
    }

    /// Brings the first `count` into order.
    fn sort(&mut self, count: usize) {
        if count < self.tokens.len() {
            self.tokens.select_nth_unstable_by(count, Self::order);
        }
        let count = count.min(self.tokens.len());
        self.tokens[..count].sort_unstable_by(Self::order);
    }

    /// How many of the likeliest are kept, now in order: `top_k` of them, and of those as few as have `top_p` of their
    /// probability, but one at least.
    fn keep(&mut self, top_k: Option<usize>, top_p: f64) -> usize {
        let all = self.tokens.len();
        if let Some(k) = top_k.filter(|&k| k < all) {
            self.sort(k.max(1));
            self.tokens.truncate(k.max(1));
            self.total = self.tokens.iter().map(|(weight, _)| weight).sum();
        }
        if top_p >= 1.0 {
            return self.tokens.len();
        }
        let mut ordered = ORDERED_FIRST;
        loop {
            self.sort(ordered);
            let mut sum = 0.0;
            for (index, (weight, _)) in self.tokens.iter().take(ordered).enumerate() {
                sum += weight;
                if sum >= top_p * self.total {
                    return index + 1;
                }
            }
            if ordered >= self.tokens.len() {
                return self.tokens.len();
            }
            ordered *= 16;
        }
    }

    /// The token in which a part of the probability of the first `kept` ends.
    fn at(&self, kept: usize, part: f64) -> u32 {
        let kept = &self.tokens[..kept];
        let mut left = part * kept.iter().map(|(weight, _)| weight).sum::<f64>();
        for (weight, token) in kept {
            left -= weight;
            if left < 0.0 {
                return *token;
            }
        }
        kept.iter().rev().find(|(weight, _)| *weight > 0.0).map_or(kept[0].1, |(_, token)| *token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(temperature: f32, top_k: Option<usize>, top_p: f32) -> Sampling {
        Sampling { temperature, top_k, top_p, seed: 5, ..Sampling::GREEDY }
    }

    /// How often each of so many tokens is chosen in 20,000 texts.
    fn shares(sampling: &Sampling, logits: &[f32]) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        for text in 0..20_000 {
            counts[sampling.choose(&mut logits.to_vec(), &[], text, 3).unwrap() as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    /// Three standard deviations of a share are 0.011 at most.
    #[track_caller]
    fn check(sampling: &Sampling, weights: &[f64], expected: &[f64]) {
        let logits: Vec<f32> = weights.iter().map(|w| w.ln() as f32).collect();
        for (found, expected) in shares(sampling, &logits).into_iter().zip(expected) {
            assert!((found - expected).abs() < 0.011 && (found > 0.0) == (*expected > 0.0), "{found} for {expected}");
        }
    }

    #[test]
    fn shares_are_the_probabilities() {
        check(&sampling(1.0, None, 1.0), &[0.1, 0.5, 0.0, 0.4], &[0.1, 0.5, 0.0, 0.4]);
        check(&sampling(0.5, None, 1.0), &[0.1, 0.5, 0.2, 0.2], &[0.01 / 0.34, 0.25 / 0.34, 0.04 / 0.34, 0.04 / 0.34]);
        check(&sampling(1.0, Some(2), 1.0), &[0.1, 0.5, 0.1, 0.3], &[0.0, 0.625, 0.0, 0.375]);
        check(&sampling(1.0, None, 0.7), &[0.1, 0.5, 0.1, 0.3], &[0.0, 0.625, 0.0, 0.375]);
        // Of equally likely tokens the first are kept, and of the three that are, six tenths need two.
        check(&sampling(1.0, Some(3), 0.6), &[0.2, 0.2, 0.2, 0.4], &[1.0 / 3.0, 0.0, 0.0, 2.0 / 3.0]);
        check(&sampling(1.0, None, 0.0), &[0.1, 0.5, 0.1, 0.3], &[0.0, 1.0, 0.0, 0.0]);
        check(&sampling(1.0, Some(0), 1.0), &[0.1, 0.5, 0.1, 0.3], &[0.0, 1.0, 0.0, 0.0]);
    }

    /// A distribution so flat that the tokens brought into order at first do not reach the share.
    #[test]
    fn a_flat_distribution_keeps_many() {
        let logits: Vec<f32> = (0..10_000).map(|i| (i % 7) as f32 * 1e-3).collect();
        let mut weights = Weights::new(&logits, 1.0);
        let kept = weights.keep(None, 0.9);
        let share: f64 = weights.tokens[..kept].iter().map(|(w, _)| w).sum::<f64>() / weights.total;
        assert!((share - 0.9).abs() < 1e-3 && kept > 8_000, "{kept} have {share}");
        assert!(weights.tokens[..kept].is_sorted_by(|a, b| Weights::order(a, b).is_lt()));
    }

    #[test]
    fn greedy_takes_the_first_of_the_likeliest() {
        assert_eq!(Sampling::GREEDY.choose(&mut [0.5, 2.0, 2.0, -1.0], &[], 0, 0), Some(1));
        assert_eq!(Sampling::GREEDY.choose(&mut [f32::NEG_INFINITY, -3.0], &[], 0, 0), Some(1));
    }

    /// 2 / 1.5 is less than 1.5, and -1·1.5 less than -1.2.
    #[test]
    fn repeated_tokens_lose() {
        let penalty = Sampling { repetition_penalty: 1.5, ..Sampling::GREEDY };
        assert_eq!(penalty.choose(&mut [1.5, 2.0], &[1, 1, 1, 7], 0, 0), Some(0));
        assert_eq!(penalty.choose(&mut [-1.2, -1.0], &[1], 0, 0), Some(0));
        assert_eq!(penalty.choose(&mut [1.5, 2.0], &[0], 0, 0), Some(1));
    }

    #[test]
    fn what_is_no_number_is_not_chosen_from() {
        for sampling in [Sampling::GREEDY, sampling(1.0, None, 1.0)] {
            assert_eq!(sampling.choose(&mut [0.0, f32::NAN], &[], 0, 0), None);
            assert_eq!(sampling.choose(&mut [0.0, f32::INFINITY], &[], 0, 0), None);
        }
    }

    /// Draws differ between texts, tokens and seeds, and are spread evenly.
    #[test]
    fn draws_are_counted() {
        let of = |seed| Sampling { seed, ..Sampling::GREEDY };
        let draws: Vec<f64> =
            [1, 2].iter().flat_map(|&s| (0..50).flat_map(move |t| (0..50).map(move |n| of(s).draw(t, n)))).collect();
        let mut sorted = draws.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.dedup();
        assert_eq!(sorted.len(), draws.len());
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!((mean - 0.5).abs() < 0.02 && sorted[0] >= 0.0 && sorted[sorted.len() - 1] < 1.0, "{mean}");
        assert_eq!(of(1).draw(3, 4).to_bits(), of(1).draw(3, 4).to_bits());
    }
}
