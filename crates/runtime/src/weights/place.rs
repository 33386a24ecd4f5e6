//! Matrices into weights stored in few bits: encoded on the host by several threads, a piece each, and written into the
//! arena as codes and scales. What that takes of the host's memory is bounded: the pieces, and four bytes for each
//! scale of a matrix.

use std::io;
use std::num::NonZero;
use std::sync::Mutex;

use plimsoll_graph::{BlockFormat, Code, NESTED_SCALES, Scales};
use plimsoll_plan::Region;

use super::ReadRegion;
use crate::codec::{code_bytes, decode_blocks, encode, nest, nested_pairs, nested_scale};
use crate::{Backend, Draw, RuntimeError};

/// Numbers that a thread encodes at a time; never less than a block of them.
const PIECE_ELEMENTS: usize = 32 << 10;
const THREADS_MAX: usize = 16;
/// Codes that are held for a device whose memory the host cannot address; never less than a piece of them.
const BATCH_BYTES: usize = 4 << 20;

/// What encoding a matrix of so many elements takes of the host's memory at most: of each thread a piece as it is read and
/// as numbers, codes that are under way, and the matrix's scales as numbers, as bytes and as their own codes.
pub fn encoding_bytes(format: &BlockFormat, elements: usize) -> u64 {
    let piece = (PIECE_ELEMENTS / format.elements).max(1) * format.elements;
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
    let codes = BATCH_BYTES.max(code_bytes(format, piece)).min(code_bytes(format, elements));
    let scales = elements.div_ceil(format.elements) * (2 * size_of::<f32>() + 1);
    (threads.min(elements.div_ceil(piece)) * piece * 2 * size_of::<f32>() + codes + scales) as u64
}

/// Gives a matrix's numbers from an element on.
pub(crate) type Numbers<'a> = dyn Fn(usize, &mut [f32]) -> io::Result<()> + Sync + 'a;

/// Where a matrix lies in a weight stored in blocks, of which it has whole ones.
#[derive(Debug, Clone, Copy)]
pub struct CodedPlace {
    pub format: BlockFormat,
    /// The whole weight's memory and elements.
    pub region: Region,
    pub weight_elements: usize,
    /// The matrix's first element, and how many it has.
    pub first: usize,
    pub elements: usize,
}

impl CodedPlace {
    fn blocks(&self) -> usize {
        self.elements / self.format.elements
    }

    fn part(&self, offset: usize, bytes: usize) -> Region {
        Region { offset: self.region.offset + offset, bytes, ..self.region }
    }

    /// Of some elements of the matrix.
    fn codes(&self, start: usize, len: usize) -> Region {
        self.part(code_bytes(&self.format, self.first + start), code_bytes(&self.format, len))
    }

    /// Of all codes of the matrix.
    pub(super) fn all_codes(&self) -> Region {
        self.codes(0, self.elements)
    }

    /// Fills in the matrix with drawn numbers, the first of which has the index `first`.
    pub fn draw(&self, draw: Draw, first: u64, backend: &mut dyn Backend) -> Result<(), RuntimeError> {
        let drawn = self.encode(backend, &|start, numbers| {
            let indexes = first + start as u64..;
            numbers.iter_mut().zip(indexes).for_each(|(x, index)| *x = draw.at(index));
            Ok(())
        })?;
        drawn.map_err(|error| RuntimeError::Device { reason: error.to_string() })
    }

    /// Encodes the matrix whose numbers these are. A failure of theirs is the inner result.
    pub(crate) fn encode(
        &self,
        backend: &mut dyn Backend,
        numbers: &Numbers<'_>,
    ) -> Result<io::Result<()>, RuntimeError> {
        let block = self.format.elements;
        let mut scales = vec![0.0; self.blocks()];
        if let Some(codes) = backend.host_bytes(self.all_codes()) {
            if let Err(error) = self.encode_batch(0, codes, &mut scales, numbers) {
                return Ok(Err(error));
            }
        } else {
            let pieces = (8 * BATCH_BYTES / self.format.code.bits() / self.piece()).max(1);
            let batch = pieces * self.piece();
            let mut codes = Vec::new();
            for start in (0..self.elements).step_by(batch) {
                let len = batch.min(self.elements - start);
                let region = self.codes(start, len);
                codes.resize(region.bytes, 0);
                let scales = &mut scales[start / block..][..len / block];
                if let Err(error) = self.encode_batch(start, &mut codes, scales, numbers) {
                    return Ok(Err(error));
                }
                backend.write(region, &codes)?;
            }
        }
        self.write_scales(&scales, backend).map(Ok)
    }

    /// Elements of a piece: whole blocks.
    fn piece(&self) -> usize {
        (PIECE_ELEMENTS / self.format.elements).max(1) * self.format.elements
    }

    /// Pieces go to whichever thread is free. Each is encoded by itself, so it does not matter to which.
    fn encode_batch(
        &self,
        start: usize,
        codes: &mut [u8],
        scales: &mut [f32],
        numbers: &Numbers<'_>,
    ) -> io::Result<()> {
        let (block, piece) = (self.format.elements, self.piece());
        let pieces = codes.len().div_ceil(code_bytes(&self.format, piece));
        let parts = codes.chunks_mut(code_bytes(&self.format, piece)).zip(scales.chunks_mut(piece / block));
        let queue = Mutex::new(parts.enumerate());
        let next = || queue.lock().map_err(|_| io::Error::other("another thread failed")).map(|mut queue| queue.next());
        let work = || -> io::Result<()> {
            let mut held = vec![0.0; piece];
            while let Some((index, (codes, scales))) = next()? {
                let held = &mut held[..scales.len() * block];
                numbers(start + index * piece, held)?;
                encode(self.format.code, block, held, codes, scales);
            }
            Ok(())
        };
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX).min(pieces);
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            let done = work();
            others.into_iter().map(join).fold(done, io::Result::and)
        })
    }

    /// Scales that are given in float32. Those of four bits are nested as bitsandbytes nests them; where the weight's
    /// are not stored so, they are what that makes of them, so that the numbers are the same.
    fn write_scales(&self, scales: &[f32], backend: &mut dyn Backend) -> Result<(), RuntimeError> {
        if self.format.code != Code::Nf4 {
            return self.write_plain_scales(scales, backend);
        }
        let mut nested = vec![0.0; scales.len().div_ceil(NESTED_SCALES)];
        let mut codes = vec![0; scales.len()];
        let offset = nest(scales, &mut codes, &mut nested);
        match self.format.scales {
            Scales::Nested => self.write_nested_scales(&codes, &nested, offset, backend),
            Scales::F32 => {
                let scale = |(block, &code): (usize, &u8)| nested_scale(code, nested[block / NESTED_SCALES], offset);
                let scales: Vec<f32> = codes.iter().enumerate().map(scale).collect();
                self.write_plain_scales(&scales, backend)
            }
        }
    }

    pub(super) fn write_plain_scales(&self, scales: &[f32], backend: &mut dyn Backend) -> Result<(), RuntimeError> {
        let at = self.scales_at() + 4 * (self.first / self.format.elements);
        let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        backend.write(self.part(at, bytes.len()), &bytes)
    }

    pub(super) fn write_nested_scales(
        &self,
        codes: &[u8],
        nested: &[f32],
        offset: f32,
        backend: &mut dyn Backend,
    ) -> Result<(), RuntimeError> {
        let block = self.first / self.format.elements;
        backend.write(self.part(self.scales_at() + block, codes.len()), codes)?;
        let pairs = nested_pairs(nested, offset);
        backend.write(self.part(self.nested_at() + 8 * (block / NESTED_SCALES), pairs.len()), &pairs)
    }

    /// The matrix's numbers from the element `first` on, of codes and scales that `read` copies.
    pub(super) fn decode(&self, first: usize, out: &mut [f32], read: &ReadRegion<'_>) -> Result<(), RuntimeError> {
        if out.is_empty() {
            return Ok(());
        }
        let block = self.format.elements;
        let blocks = first / block..(first + out.len()).div_ceil(block);
        let codes = self.codes(blocks.start * block, blocks.len() * block);
        let mut bytes = vec![0; codes.bytes];
        read(codes, &mut bytes)?;
        let scales = self.read_scales(self.first / block + blocks.start, blocks.len(), read)?;
        decode_blocks(&self.format, bytes, &scales, first - blocks.start * block, out);
        Ok(())
    }

    /// Scales of some of the weight's blocks.
    fn read_scales(&self, first: usize, len: usize, read: &ReadRegion<'_>) -> Result<Vec<f32>, RuntimeError> {
        let floats = |offset: usize, len: usize| {
            let mut bytes = vec![0; 4 * len];
            read(self.part(offset, bytes.len()), &mut bytes)?;
            Ok::<_, RuntimeError>(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect::<Vec<_>>())
        };
        if self.format.scales == Scales::F32 {
            return floats(self.scales_at() + 4 * first, len);
        }
        let mut codes = vec![0; len];
        read(self.part(self.scales_at() + first, len), &mut codes)?;
        let groups = first / NESTED_SCALES..(first + len).div_ceil(NESTED_SCALES);
        let pairs = floats(self.nested_at() + 8 * groups.start, 2 * groups.len())?;
        let scale = |(block, &code): (usize, &u8)| {
            let pair = 2 * (block / NESTED_SCALES - groups.start);
            nested_scale(code, pairs[pair], pairs[pair + 1])
        };
        Ok((first..).zip(&codes).map(scale).collect())
    }

    fn nested_at(&self) -> usize {
        self.format.nested_at(self.weight_elements).expect("its bytes were counted")
    }

    fn scales_at(&self) -> usize {
        self.format.scales_at(self.weight_elements).expect("its bytes were counted")
    }
}
