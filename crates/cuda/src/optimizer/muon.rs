//! Muon: momentum, made orthogonal by products of the library, one matrix behind another.

use std::ops::Range;

use plimsoll_graph::ops::{MUON_EPS, Muon, NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS};
use plimsoll_graph::{DType, GPU_PARTIAL_ROWS};
use plimsoll_runtime::RuntimeError;

use super::update::{Rule, master_address, site, update_by};
use super::{MODULE as NORM_MODULE, NORM_ROWS, NORM_THREADS, norm_rows};
use crate::blas::{Factor, Onto, Product};
use crate::call::{Args, Call, Operand};
use crate::linear::multiply;

const MODULE: &str = "optimizer_muon";
const THREADS: u32 = 256;
/// Elements that a thread handles, unless the matrix is very large.
const ELEMENTS_PER_THREAD: usize = 8;
const BLOCKS_MAX: usize = 1 << 16;
/// What parts of the workspace begin at.
const ALIGNMENT: usize = 256;

pub(crate) fn muon(op: &Muon, call: &Call) -> Result<(), RuntimeError> {
    let direction = Rule {
        module: MODULE,
        name: "muon",
        shared: [3, 4],
        states: vec![2],
        master: None,
        numbers: vec![f32::from(u8::from(op.nesterov))],
    };
    update_by(direction, call)?;
    let (p, g) = (call.output(0), call.output(1));
    let master = master_address(call, op.master.then(|| call.output(3)))?;
    let scratch = Scratch::new(op, call, &p)?;
    for rows in op.matrices.iter() {
        let x = scratch.orthogonal(call, &g, &rows)?;
        let (first, len) = (rows.start * p.cols, rows.len() * p.cols);
        let args = Args::new()
            .ptr(p.ptr)
            .ptr(x)
            .ptr(master)
            .ptr(call.input(3).ptr)
            .ptr(call.input(4).ptr)
            .u64(first as u64)
            .u64(len as u64)
            .u32(site(call))
            .f32(op.scale.factor(rows.len(), p.cols) as f32)
            .f32(op.weight_decay);
        scratch.launch(call, &format!("muon_move_{}", p.dtype.name()), len, args)?;
    }
    call.zero(g.ptr, g.bytes())
}

/// The step's workspace: the library's own, a matrix and what it becomes, `X·Xᵀ` and the polynomial of that, all in the
/// parameter's type, and the norm with the sums it is made of.
struct Scratch {
    dtype: DType,
    library: (u64, usize),
    whole: [u64; 2],
    square: [u64; 2],
    norm: u64,
}

impl Scratch {
    fn new(op: &Muon, call: &Call, p: &Operand) -> Result<Self, RuntimeError> {
        let (start, planned) = call.workspace();
        let sizes = op.scratch(p.cols).map(|elements| elements * p.dtype.bytes());
        let own = sizes.iter().sum::<usize>() + (1 + GPU_PARTIAL_ROWS) * size_of::<f64>();
        // What is planned beyond that is the library's.
        let Some(library_bytes) = planned.checked_sub(own) else {
            return Err(call.error(format!("needs {own} bytes of workspace, {planned} were planned")));
        };
        let library = (start, library_bytes / ALIGNMENT * ALIGNMENT);
        let mut end = start + library.1 as u64;
        let [x, y, gram, polynomial] = sizes.map(|bytes| {
            end += bytes as u64;
            end - bytes as u64
        });
        Ok(Self { dtype: p.dtype, library, whole: [x, y], square: [gram, polynomial], norm: end })
    }

    fn launch(&self, call: &Call, kernel: &str, elements: usize, args: Args) -> Result<(), RuntimeError> {
        let blocks = elements.div_ceil(THREADS as usize * ELEMENTS_PER_THREAD).clamp(1, BLOCKS_MAX);
        call.launch(MODULE, kernel, (blocks as u32, 1, 1), THREADS, 0, args)
    }

    /// `x = matrix / norm`.
    fn divide(&self, call: &Call, matrix: &Operand, x: u64) -> Result<(), RuntimeError> {
        let partial = self.norm + size_of::<f64>() as u64;
        let (rows, parts) = norm_rows(&[matrix]);
        let args = Args::with_table(&rows, NORM_ROWS).u32(rows.len() as u32).ptr(partial);
        let kernel = format!("square_sums_{}", matrix.dtype.name());
        call.launch(NORM_MODULE, &kernel, (parts as u32, 1, 1), NORM_THREADS, 0, args)?;
        let args = Args::new().ptr(partial).ptr(self.norm).u32(parts as u32).f32(MUON_EPS as f32);
        call.launch(MODULE, "muon_norm", (1, 1, 1), THREADS, 0, args)?;
        let args = Args::new().ptr(matrix.ptr).ptr(x).ptr(self.norm).u64(matrix.len() as u64);
        let kernel = format!("muon_divide_{}_{}", matrix.dtype.name(), self.dtype.name());
        self.launch(call, &kernel, matrix.len(), args)
    }

    /// Where some rows of `g` lie once their singular values are near one.
    fn orthogonal(&self, call: &Call, g: &Operand, rows: &Range<usize>) -> Result<u64, RuntimeError> {
        let start = g.at(rows.start, 0);
        let (rows, cols) = (rows.len(), g.cols);
        let matrix = Operand { ptr: start, rows, planned_rows: rows, ..*g };
        let (short, long, wide) = (rows.min(cols), rows.max(cols), rows <= cols);
        let [mut x, mut y] = self.whole;
        let [gram, polynomial] = self.square;
        self.divide(call, &matrix, x)?;
        let product = |[rows, cols, depth]: [usize; 3], left: Factor, right: Factor, result: u64| {
            let product = Product {
                rows,
                cols,
                depth,
                alpha: 1.0,
                left,
                right,
                dtype: self.dtype,
                result,
                result_stride: cols,
                result_dtype: self.dtype,
                onto: Onto::Nothing,
                bias: None,
            };
            multiply(call, &product, self.library).map(|_| ())
        };
        let [a, b, c] = NEWTON_SCHULZ.map(|number| number as f32);
        let square = |at: u64| Factor::new(at, short);
        for _ in 0..NEWTON_SCHULZ_STEPS {
            // With more rows than columns, all of this is done to the transpose.
            let as_it_lies = Factor::new(x, cols);
            let lying = if wide { as_it_lies } else { as_it_lies.transposed() };
            product([short, short, long], lying, lying.transposed(), gram)?;
            product([short, short, short], square(gram), square(gram), polynomial)?;
            let args = Args::new().ptr(gram).ptr(polynomial).u64(short as u64).f32(a).f32(b).f32(c);
            self.launch(call, &format!("muon_polynomial_{}", self.dtype.name()), short * short, args)?;
            match wide {
                true => product([short, long, short], square(polynomial), as_it_lies, y)?,
                false => product([long, short, short], as_it_lies, square(polynomial), y)?,
            }
            std::mem::swap(&mut x, &mut y);
        }
        Ok(x)
    }
}
