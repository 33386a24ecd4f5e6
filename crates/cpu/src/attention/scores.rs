//! What becomes of a score before the softmax: a soft cap, then a bias by distance.

use plimsoll_graph::ops::{Attention, Mask};
use plimsoll_runtime::RuntimeError;

use super::{TILE, seeing};
use crate::args::{Call, Matrix};
use crate::math::{exp, tanh};
use crate::vector::vectorized;

/// Numbers by distance for all pairs of a tile: that of key `k` and query `q` stands at `q - k + TILE - 1`, so that the
/// queries of one key find theirs side by side. The last is not in use.
pub(super) type Band = [f32; 2 * TILE];

/// Whether scores are capped and biased, known when a loop is compiled.
trait Form {
    const CAPPED: bool;
    const BIASED: bool;
}

struct Capped;
struct Biased;
struct CappedAndBiased;

impl Form for Capped {
    const CAPPED: bool = true;
    const BIASED: bool = false;
}

impl Form for Biased {
    const CAPPED: bool = false;
    const BIASED: bool = true;
}

impl Form for CappedAndBiased {
    const CAPPED: bool = true;
    const BIASED: bool = true;
}

#[derive(Clone, Copy)]
pub(super) struct Shaping {
    softcap: Option<f32>,
    bias: Option<Matrix>,
    max_length: usize,
}

impl Shaping {
    /// With the bias at `input`, if there is one.
    pub(super) fn new(op: &Attention, call: &Call, input: usize) -> Result<Self, RuntimeError> {
        let bias = if op.bias { Some(call.input(input)?) } else { None };
        Ok(Self { softcap: op.softcap, bias, max_length: op.max_length })
    }

    /// Are scores taken as they are?
    pub(super) fn is_plain(&self) -> bool {
        self.softcap.is_none() && self.bias.is_none()
    }

    /// Brings a head's bias for two tiles into `to`.
    ///
    /// # Safety
    /// `to` has capacity for a [`Band`].
    pub(super) unsafe fn load_band(&self, head: usize, query_tile: usize, key_tile: usize, to: *mut f32) {
        let Some(table) = self.bias else { return };
        // SAFETY: a row of the table, which nobody writes to; the caller vouches for the band.
        let (row, band) = unsafe { (std::slice::from_raw_parts(table.row(head), table.cols), &mut *to.cast::<Band>()) };
        // Where query and key both are the first of their tiles.
        let same = (key_tile * TILE + self.max_length - 1) as isize - (query_tile * TILE) as isize;
        for (at, number) in band.iter_mut().enumerate() {
            let distance = same + (TILE - 1) as isize - at as isize;
            // Tiles reach beyond their sequences.
            *number = usize::try_from(distance).ok().and_then(|distance| row.get(distance)).copied().unwrap_or(0.0);
        }
    }

    /// Caps and biases a tile of scores.
    ///
    /// # Safety
    /// `scores` is a tile with `keys` rows filled, `band` a [`Band`] that was loaded for it.
    pub(super) unsafe fn apply(&self, keys: usize, scores: *mut f32, band: *const f32) {
        let cap = self.softcap.unwrap_or(1.0);
        // SAFETY: the caller vouches for tile and band.
        unsafe {
            match (self.softcap, self.bias) {
                (None, None) => {}
                (Some(_), None) => shape_scores::<Capped>(keys, scores, cap, band.cast()),
                (None, Some(_)) => shape_scores::<Biased>(keys, scores, cap, band.cast()),
                (Some(_), Some(_)) => shape_scores::<CappedAndBiased>(keys, scores, cap, band.cast()),
            }
        }
    }

    /// Products of queries and keys become probabilities, and `ds`, which holds the probabilities' gradient, that of the
    /// products. The gradient of the bias is added up in `d_band`.
    ///
    /// # Safety
    /// As [`ScoreTile`] says.
    pub(super) unsafe fn gradients(&self, tile: ScoreTile, d_band: &mut Band) {
        let cap = self.softcap.unwrap_or(1.0);
        // SAFETY: the caller vouches for the tile.
        unsafe {
            match (self.softcap, self.bias) {
                (None, None) => unreachable!("plain scores have a loop of their own"),
                (Some(_), None) => shaped_gradients::<Capped>(tile, cap, d_band),
                (None, Some(_)) => shaped_gradients::<Biased>(tile, cap, d_band),
                (Some(_), Some(_)) => shaped_gradients::<CappedAndBiased>(tile, cap, d_band),
            }
        }
    }
}

/// A tile of scores on the way back: two tiles, two lines with a number per query, and a [`Band`], all apart.
#[derive(Clone, Copy)]
pub(super) struct ScoreTile {
    pub keys: usize,
    pub queries: usize,
    pub p: *mut f32,
    pub ds: *mut f32,
    pub lse: *const f32,
    pub delta: *const f32,
    pub band: *const f32,
    pub scale: f32,
    pub mask: Mask,
    /// How far the first query lies behind the first key.
    pub ahead: usize,
}

vectorized! {
    unsafe fn shape_scores<F: Form>(keys: usize, scores: *mut f32, cap: f32, band: *const Band) {
        // SAFETY: the caller vouches for the tile and, where it is in use, for the band.
        unsafe {
            let scores = std::slice::from_raw_parts_mut(scores.cast::<[f32; TILE]>(), keys);
            let band = if F::BIASED { *band } else { [0.0; 2 * TILE] };
            let inverse = 1.0 / cap;
            for (key, line) in scores.iter_mut().enumerate() {
                let bias = &band[TILE - 1 - key..][..TILE];
                for (score, bias) in line.iter_mut().zip(bias) {
                    let capped = if F::CAPPED { cap * tanh(*score * inverse) } else { *score };
                    *score = if F::BIASED { capped + bias } else { capped };
                }
            }
        }
    }
}

vectorized! {
    unsafe fn shaped_gradients<F: Form>(tile: ScoreTile, cap: f32, d_band: &mut Band) {
        // SAFETY: the caller vouches for two tiles, two lines and a band, all apart.
        unsafe {
            let p = std::slice::from_raw_parts_mut(tile.p.cast::<[f32; TILE]>(), tile.keys);
            let ds = std::slice::from_raw_parts_mut(tile.ds.cast::<[f32; TILE]>(), tile.keys);
            let (lse, delta) = (*tile.lse.cast::<[f32; TILE]>(), *tile.delta.cast::<[f32; TILE]>());
            let band = if F::BIASED { *tile.band.cast::<Band>() } else { [0.0; 2 * TILE] };
            let inverse = 1.0 / cap;
            for (key, (p, ds)) in p.iter_mut().zip(ds).enumerate() {
                let seeing = seeing(tile.mask, key, tile.ahead);
                let (first, end) = (seeing.start as i32, seeing.end.min(tile.queries) as i32);
                let bias = &band[TILE - 1 - key..][..TILE];
                let d_bias = &mut d_band[TILE - 1 - key..][..TILE];
                for query in 0..TILE {
                    let (mut score, mut slope) = (p[query], tile.scale);
                    if F::CAPPED {
                        let bent = tanh(score * inverse);
                        score = cap * bent;
                        slope *= (1.0 - bent) * (1.0 + bent);
                    }
                    if F::BIASED {
                        score += bias[query];
                    }
                    let seen = query as i32 >= first && (query as i32) < end;
                    let chance = if seen { exp(score - lse[query]) } else { 0.0 };
                    let gradient = chance * (ds[query] - delta[query]);
                    p[query] = chance;
                    // Parts of both tiles that no query may see were never computed.
                    ds[query] = if chance == 0.0 { 0.0 } else { gradient * slope };
                    if F::BIASED {
                        d_bias[query] += if chance == 0.0 { 0.0 } else { gradient };
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_band_of_two_tiles_is_the_table_by_distance() {
        let (max_length, max_keys) = (150, 130);
        let mut table: Vec<f32> = (0..2 * (max_length + max_keys - 1)).map(|i| i as f32 + 1.0).collect();
        let cols = max_length + max_keys - 1;
        let mut bias = Matrix::of(&mut table);
        (bias.rows, bias.cols) = (2, cols);
        let shaping = Shaping { softcap: None, bias: Some(bias), max_length };
        let mut band = [f32::NAN; 2 * TILE];
        for (query_tile, key_tile) in [(0, 0), (2, 0), (0, 2), (1, 2), (2, 2)] {
            // SAFETY: a band.
            unsafe { shaping.load_band(1, query_tile, key_tile, band.as_mut_ptr()) };
            for query in 0..TILE.min(max_length - query_tile * TILE) {
                for key in 0..TILE.min(max_keys - key_tile * TILE) {
                    let distance = key_tile * TILE + key + max_length - 1 - (query_tile * TILE + query);
                    let got = band[query + TILE - 1 - key];
                    assert_eq!(got, table[cols + distance], "tiles {query_tile} {key_tile}, {query} {key}");
                }
            }
        }
    }
}
