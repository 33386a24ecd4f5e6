//! One mask on every backend, element by element: a run may move from one device to another. Ones and identity matrices
//! leave nothing of an operator but its mask.

use plimsoll_conformance::{Harness, Placement, Random, SIXTEEN, Suite, Tensor, unit};
use plimsoll_cpu::mask::Mask;
use plimsoll_graph::DType;
use plimsoll_graph::ops::{Dest, Dropout, InnerDropout, Linear, LinearKind};
use plimsoll_runtime::Active;

/// A site during an update, and the rows it masks.
struct Site {
    dropout: InnerDropout,
    key: [u32; 4],
    ids: Vec<u32>,
}

impl Site {
    fn random(random: &mut Random, p: f32, rows: usize) -> Self {
        let key = [(); 4].map(|()| random.next_u64() as u32);
        let mut ids: Vec<u32> = (0..rows).map(|_| random.next_u64() as u32).collect();
        // Small ids are the usual ones; the largest is one too.
        ids.iter_mut().take(rows / 2).enumerate().for_each(|(index, id)| *id = index as u32);
        ids[rows - 1] = u32::MAX;
        Self { dropout: InnerDropout { p, site: random.next_u64() as u32 }, key, ids }
    }

    fn active(&self) -> Active {
        Active::one(self.ids.len(), 1)
    }

    /// What `cpu/src/mask.rs` says an element is multiplied by.
    fn factor(&self, row: usize, column: usize) -> f64 {
        let mask = Mask::new(self.dropout.p, self.dropout.site, self.key);
        f64::from(mask.row(self.ids[row]).factor(column as u32))
    }

    /// Runs an operator with the site's ids and key behind its other inputs. Gives the first output.
    fn run(&self, harness: &mut Harness, op: impl Into<plimsoll_graph::Op>, mut inputs: Vec<Tensor>) -> Vec<f64> {
        inputs.extend([Tensor::row_ids(self.ids.clone()), Tensor::rng_key(self.key)]);
        harness.run(&op.into(), &inputs, self.active(), &Placement::default())[0].array(self.active()).data
    }

    /// Compares a result with the mask: zero where it drops, and the scale, rounded, where it keeps.
    fn compare(
        &self,
        what: &str,
        dtype: DType,
        got: &[f64],
        cols: usize,
        place: impl Fn(usize, usize) -> (usize, usize),
    ) {
        for (index, &got) in got.iter().enumerate() {
            let (row, column) = place(index / cols, index % cols);
            let want = self.factor(row, column);
            let right = (got - want).abs() <= want * (unit(dtype) + 1e-6);
            let id = self.ids[row];
            assert!(right, "{what} in {}: row id {id}, column {column}: {got}, the mask says {want}", dtype.name());
        }
    }
}

fn ones(rows: usize, cols: usize) -> Tensor {
    Tensor::tokens(rows, cols, vec![1.0; rows * cols])
}

/// A matrix with a one in column `first + r` of each row `r`, as far as there are columns.
fn shifted_identity(rows: usize, cols: usize, first: usize) -> Vec<f32> {
    (0..rows * cols).map(|i| if i % cols == first + i / cols { 1.0 } else { 0.0 }).collect()
}

/// The types a backend stores numbers in.
fn types(harness: &Harness) -> Vec<DType> {
    let sixteen = if harness.stores_sixteen() { &SIXTEEN[..] } else { &[] };
    [&[DType::F32], sixteen].concat()
}

const SHARES: [f32; 5] = [0.0, 0.05, 0.1, 0.5, 0.9];

#[test]
fn dropout_draws_the_mask_that_is_written_down() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(100));
    for harness in suite.all_harnesses() {
        for dtype in types(harness) {
            for (p, cols) in SHARES.into_iter().zip([1, 8, 33, 64, 1001]) {
                let site = Site::random(random, p, 37);
                let op = Dropout { p, site: site.dropout.site };
                let got = site.run(harness, op, vec![ones(37, cols).stored(dtype)]);
                site.compare(&format!("dropout on {}", harness.name()), dtype, &got, cols, |row, column| (row, column));
            }
        }
    }
}

/// Ranks with kernels of their own and one without, and widths that end inside of a pack or a tile.
const PRODUCTS: [(usize, usize, usize); 6] =
    [(33, 4, 72), (130, 16, 264), (70, 24, 1000), (41, 64, 264), (40, 65, 130), (20, 7, 33)];

fn product(kind: LinearKind, dest: Dest, dropout: InnerDropout) -> Linear {
    Linear { kind, dest, dropout: Some(dropout), ..Linear::forward() }
}

/// Ones times an identity: the columns of the mask, as many at a time as the weight has rows.
fn forward(harness: &mut Harness, site: &Site, dtype: DType, rank: usize, cols: usize) {
    for first in (0..cols).step_by(rank).map(|first| first.min(cols.saturating_sub(rank))) {
        let weight = Tensor::fixed(&[rank, cols], shifted_identity(rank, cols, first));
        let inputs = vec![ones(site.ids.len(), cols).stored(dtype), weight.stored(dtype)];
        let got = site.run(harness, product(LinearKind::Forward, Dest::Fresh, site.dropout), inputs);
        let what = format!("product of rank {rank} on {}", harness.name());
        site.compare(&what, dtype, &got, rank, |row, column| (row, first + column));
    }
}

/// One row of the weight is ones: every element of the gradient is one before it is masked.
fn input_gradient(harness: &mut Harness, site: &Site, dtype: DType, rank: usize, cols: usize) {
    let mut weight = vec![0.0; rank * cols];
    weight[..cols].fill(1.0);
    let weight = Tensor::fixed(&[rank, cols], weight).stored(dtype);
    for dest in [Dest::Fresh, Dest::Accumulate] {
        let rows = site.ids.len();
        let mut inputs = vec![ones(rows, rank).stored(dtype), weight.clone()];
        if dest == Dest::Accumulate {
            inputs.push(Tensor::tokens(rows, cols, vec![0.0; rows * cols]).stored(dtype));
        }
        let got = site.run(harness, product(LinearKind::InputGrad, dest, site.dropout), inputs);
        let what = format!("input gradient of rank {rank} on {}", harness.name());
        site.compare(&what, dtype, &got, cols, |row, column| (row, column));
    }
}

/// An identity times ones: rows of the mask, as many at a time as the weight has rows.
fn weight_gradient(harness: &mut Harness, site: &Site, dtype: DType, rank: usize, cols: usize) {
    let rows = site.ids.len();
    for first in (0..rows).step_by(rank).map(|first| first.min(rows.saturating_sub(rank))) {
        let picked: Vec<f32> = (0..rows * rank).map(|i| if i / rank == first + i % rank { 1.0 } else { 0.0 }).collect();
        for gradient in [DType::F32, dtype] {
            let so_far = Tensor::fixed(&[rank, cols], vec![0.0; rank * cols]).stored(gradient);
            let tokens = [Tensor::tokens(rows, rank, picked.clone()), ones(rows, cols)].map(|t| t.stored(dtype));
            let inputs = [&tokens[..], &[so_far]].concat();
            let got = site.run(harness, product(LinearKind::WeightGrad, Dest::Accumulate, site.dropout), inputs);
            let what = format!("weight gradient of rank {rank} on {}", harness.name());
            // Rows of the weight that no token picks are zero.
            let picked = rank.min(rows - first);
            site.compare(&what, dtype, &got[..picked * cols], cols, |row, column| (first + row, column));
            assert!(got[picked * cols..].iter().all(|&x| x == 0.0), "{what}: rows that nothing was added to");
        }
    }
}

#[test]
fn products_use_the_mask_that_is_written_down() {
    let (suite, random) = (&mut Suite::new(), &mut Random::new(101));
    for harness in suite.all_harnesses() {
        for dtype in types(harness) {
            for ((rows, rank, cols), p) in PRODUCTS.into_iter().zip(SHARES.into_iter().cycle().skip(1)) {
                let site = Site::random(random, p, rows);
                forward(harness, &site, dtype, rank, cols);
                input_gradient(harness, &site, dtype, rank, cols);
                weight_gradient(harness, &site, dtype, rank, cols);
            }
        }
    }
}

/// The comparison is not satisfied by any mask.
#[test]
#[should_panic(expected = "the mask says")]
fn another_mask_is_noticed() {
    let random = &mut Random::new(102);
    let (drawn, other) = (Site::random(random, 0.5, 10), Site::random(random, 0.5, 10));
    let mut suite = Suite::new();
    let op = Dropout { p: 0.5, site: drawn.dropout.site };
    let got = drawn.run(&mut suite.harnesses()[0], op, vec![ones(10, 16)]);
    other.compare("dropout", DType::F32, &got, 16, |row, column| (row, column));
}
