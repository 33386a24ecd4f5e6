//! Reading. Plain positioned reads instead of a mapping: mapped pages would count as the process's
//! memory, and a file that shrinks while mapped kills the process.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use plimsoll_graph::{BlockFormat, DType, Shape};
use plimsoll_plan::Region;
use safetensors::tensor::{Dtype, Metadata};

use super::coded::{CodedTensor, Layout};
use super::write::stored_as;
use super::{CodedPlace, OutTensor, WeightError};
use crate::Backend;

/// Headers beyond this are not headers.
const HEADER_BYTES_MAX: u64 = 100 << 20;

/// A tensor's place in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    file: usize,
    pub(super) offset: u64,
}

/// The weight files of one model folder, opened and checked, with nothing read but their headers.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<(PathBuf, File)>,
    tensors: HashMap<String, TensorInfo>,
    folder: PathBuf,
}

impl TensorInfo {
    pub fn bytes(&self) -> u64 {
        (self.elements() * self.dtype.bitsize() / 8) as u64
    }

    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Checkpoint {
    /// Opens `STEM.safetensors`, or the shards that `STEM.safetensors.index.json` lists.
    pub fn open(folder: &Path, stem: &str) -> Result<Self, WeightError> {
        let single = folder.join(format!("{stem}.safetensors"));
        let index = folder.join(format!("{stem}.safetensors.index.json"));
        let mut checkpoint = Self { files: Vec::new(), tensors: HashMap::new(), folder: folder.to_owned() };
        if single.exists() {
            checkpoint.add_file(&single)?;
        } else if index.exists() {
            for shard in shards(&index)? {
                checkpoint.add_file(&folder.join(shard))?;
            }
        } else {
            return Err(missing(folder, stem));
        }
        Ok(checkpoint)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The files themselves, open.
    pub fn files(&self) -> impl Iterator<Item = (&Path, &File)> {
        self.files.iter().map(|(path, file)| (path.as_path(), file))
    }

    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Every tensor as the files have them, one behind another.
    pub fn in_order(&self) -> Vec<(&str, &TensorInfo)> {
        let mut all: Vec<(&str, &TensorInfo)> = self.tensors.iter().map(|(name, info)| (name.as_str(), info)).collect();
        all.sort_by_key(|(_, info)| (info.file, info.offset));
        all
    }

    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Some of a tensor's bytes as they are stored, `from` bytes behind its beginning.
    pub fn read_stored(&self, info: &TensorInfo, from: u64, bytes: &mut [u8]) -> Result<(), WeightError> {
        let (path, file) = &self.files[info.file];
        file.read_exact_at(bytes, info.offset + from).map_err(|e| WeightError::read(path, e))
    }

    /// Where a tensor is stored.
    pub fn path_of(&self, info: &TensorInfo) -> &Path {
        &self.files[info.file].0
    }

    pub(super) fn file_of(&self, info: &TensorInfo) -> (&Path, &File) {
        let (path, file) = &self.files[info.file];
        (path, file)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn no_tensor(&self, name: &str) -> WeightError {
        WeightError::NoTensor { path: self.folder.clone(), name: name.to_owned() }
    }

    /// Whether two tensors are both there with different content.
    pub fn differ(&self, one: &str, other: &str) -> Result<bool, WeightError> {
        let (Some(one), Some(other)) = (self.tensors.get(one), self.tensors.get(other)) else { return Ok(false) };
        if (&one.shape, one.dtype) != (&other.shape, other.dtype) {
            return Ok(true);
        }
        let bytes = one.shape.iter().product::<usize>() as u64 * one.dtype.bitsize() as u64 / 8;
        let (mut left, mut right) = (vec![0; RAW_BYTES], vec![0; RAW_BYTES]);
        for done in (0..bytes).step_by(RAW_BYTES) {
            let len = RAW_BYTES.min((bytes - done) as usize);
            for (info, piece) in [(one, &mut left), (other, &mut right)] {
                let (path, file) = &self.files[info.file];
                file.read_exact_at(&mut piece[..len], info.offset + done).map_err(|e| WeightError::read(path, e))?;
            }
            if left[..len] != right[..len] {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn add_file(&mut self, path: &Path) -> Result<(), WeightError> {
        let file = File::open(path).map_err(|e| WeightError::read(path, e))?;
        let (header_bytes, metadata) = header(path, &file)?;
        let index = self.files.len();
        for (name, info) in metadata.tensors() {
            let offset = header_bytes + info.data_offsets.0 as u64;
            let found = TensorInfo { dtype: info.dtype, shape: info.shape.clone(), file: index, offset };
            self.tensors.insert(name, found);
        }
        self.files.push((path.to_owned(), file));
        Ok(())
    }

    pub(super) fn find(&self, name: &str, shape: &Shape) -> Result<(&TensorInfo, &Path, &File), WeightError> {
        let info = self.tensors.get(name).ok_or_else(|| self.no_tensor(name))?;
        let (path, file) = &self.files[info.file];
        if info.shape != shape.dims() {
            return Err(WeightError::Shape {
                path: path.clone(),
                name: name.to_owned(),
                expected: shape.dims().to_vec(),
                found: info.shape.clone(),
            });
        }
        Ok((info, path, file))
    }

    /// Is the tensor there, in a shape and type that can be loaded? Weights in few bits, as other programs store them, can.
    pub fn check(&self, name: &str, shape: &Shape) -> Result<(), WeightError> {
        self.layout(name, shape).map(|_| ())
    }

    /// Whether what is there can become a weight stored so: from a floating-point type, or as it is.
    pub fn check_as(&self, name: &str, shape: &Shape, format: &BlockFormat) -> Result<(), WeightError> {
        match self.layout(name, shape)? {
            Layout::Plain(_) => Ok(()),
            Layout::Coded(tensor) => tensor.check_as(name, format),
        }
    }

    /// The type a tensor is stored in, if it is one that can be loaded.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        match self.tensors.get(name)?.dtype {
            Dtype::F32 => Some(DType::F32),
            Dtype::F16 => Some(DType::F16),
            Dtype::BF16 => Some(DType::BF16),
            _ => None,
        }
    }

    /// Reads elements of a tensor into the host's memory, from `first` on, as float32.
    pub fn read(&self, name: &str, shape: &Shape, first: usize, numbers: &mut [f32]) -> Result<(), WeightError> {
        match self.layout(name, shape)? {
            Layout::Coded(tensor) => tensor.numbers(name, first, numbers),
            Layout::Plain(info) => {
                let read =
                    self.stored(info, DType::F32).read(first * DType::F32.bytes(), bytemuck::cast_slice_mut(numbers));
                read.map_err(|error| unreadable(name, self.path_of(info), error))
            }
        }
    }

    fn stored(&self, info: &TensorInfo, wanted: DType) -> Stored<'_> {
        Stored { file: &self.files[info.file].1, dtype: info.dtype, offset: info.offset, wanted, finite: true }
    }

    /// Streams a tensor to the place it was written from, as it is. Nothing else may be stored under its name.
    pub fn load_exactly(&self, tensor: &OutTensor, backend: &mut dyn Backend) -> Result<(), WeightError> {
        let OutTensor { name, shape, dtype, region, .. } = tensor;
        let (info, path, file) = self.find(name, shape)?;
        if info.dtype != stored_as(*dtype) {
            let (path, dtype) = (path.to_owned(), format!("{:?}", info.dtype));
            return Err(WeightError::DType { path, name: name.clone(), dtype });
        }
        let stored = Stored { file, dtype: info.dtype, offset: info.offset, wanted: *dtype, finite: false };
        backend
            .write_with(*region, &mut |done, place| stored.read(done, place))?
            .map_err(|e| WeightError::read(path, e))
    }

    /// Streams a tensor to its place in the arena, converting on the way.
    pub fn load(
        &self,
        name: &str,
        shape: &Shape,
        dtype: DType,
        region: Region,
        backend: &mut dyn Backend,
    ) -> Result<(), WeightError> {
        let (info, tensor) = match self.layout(name, shape)? {
            Layout::Plain(info) => (info, None),
            Layout::Coded(tensor) => (self.find_stored(name)?, Some(tensor)),
        };
        let read = match tensor {
            None => {
                let stored = self.stored(info, dtype);
                backend.write_with(region, &mut |done, place| stored.read(done, place))?
            }
            Some(tensor) => backend.write_with(region, &mut |done, place| {
                in_parts(done, place, &|done, part| decode_part(&tensor, name, dtype, done, part))
            })?,
        };
        read.map_err(|error| unreadable(name, self.path_of(info), error))
    }

    fn find_stored(&self, name: &str) -> Result<&TensorInfo, WeightError> {
        self.tensors.get(name).ok_or_else(|| self.no_tensor(name))
    }

    /// Streams a matrix into a weight stored in few bits: encoded on the way, or as it is where it is stored so.
    pub fn load_coded(
        &self,
        name: &str,
        shape: &Shape,
        place: &CodedPlace,
        backend: &mut dyn Backend,
    ) -> Result<(), WeightError> {
        let info = match self.layout(name, shape)? {
            Layout::Coded(tensor) => return tensor.load(name, place, backend),
            Layout::Plain(info) => info,
        };
        let stored = self.stored(info, DType::F32);
        let read = place.encode(backend, &|first, numbers| {
            stored.read_part(first * DType::F32.bytes(), bytemuck::cast_slice_mut(numbers))
        })?;
        read.map_err(|error| unreadable(name, self.path_of(info), error))
    }
}

/// Decodes a part of a tensor, which begins `done` bytes behind the beginning, into another type.
fn decode_part(tensor: &CodedTensor<'_>, name: &str, wanted: DType, done: usize, part: &mut [u8]) -> io::Result<()> {
    let mut numbers = vec![0.0; RAW_BYTES / DType::F32.bytes()];
    let piece_bytes = numbers.len() * wanted.bytes();
    for (index, piece) in part.chunks_mut(piece_bytes).enumerate() {
        let numbers = &mut numbers[..piece.len() / wanted.bytes()];
        tensor.numbers(name, (done + index * piece_bytes) / wanted.bytes(), numbers).map_err(io::Error::other)?;
        store(numbers.iter().copied(), wanted, piece);
        check_finite(piece, wanted)?;
    }
    Ok(())
}

pub(super) fn unreadable(name: &str, path: &Path, error: io::Error) -> WeightError {
    match error.get_ref() {
        Some(inner) if inner.is::<NotFinite>() => {
            WeightError::NotFinite { path: path.to_owned(), name: name.to_owned() }
        }
        // What a reader of codes and scales already said in its own words.
        Some(inner) if inner.is::<WeightError>() => {
            let inner = error.into_inner().and_then(|inner| inner.downcast().ok());
            inner.map_or_else(|| WeightError::read(path, io::ErrorKind::Other.into()), |inner| *inner)
        }
        _ => WeightError::read(path, error),
    }
}

/// What passes through [`io::Error`] where a number is NaN or infinite.
#[derive(Debug)]
pub(super) struct NotFinite;

impl std::error::Error for NotFinite {}

impl std::fmt::Display for NotFinite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a number is not finite")
    }
}

/// Why a folder has no weights that can be read.
fn missing(folder: &Path, stem: &str) -> WeightError {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let of_python = |name: &String| {
        let suffix = Path::new(name).extension().and_then(|suffix| suffix.to_str());
        // Those of the optimizer are no weights.
        matches!(suffix, Some("bin" | "pt" | "pth" | "ckpt")) && (name.starts_with(stem) || name.contains("model"))
    };
    let mut found: Vec<String> = names.filter_map(|name| name.into_string().ok()).filter(of_python).collect();
    found.sort();
    match found.into_iter().next() {
        Some(file) => WeightError::OtherFormat { path: folder.to_owned(), file },
        None => WeightError::Missing { path: folder.to_owned(), stem: stem.to_owned() },
    }
}

/// Threads that read at the same time: one alone does not keep a fast disk busy, nor the way to a device.
const READERS: usize = 4;
/// Bytes below which a second one is not worth it.
const READER_BYTES_MIN: usize = 1 << 20;
/// Bytes that a thread holds before it converts them.
const RAW_BYTES: usize = 256 << 10;

/// Has several threads fill `place`, which begins `done` bytes behind something's beginning, a part each.
pub(super) fn in_parts(
    done: usize,
    place: &mut [u8],
    fill: &(dyn Fn(usize, &mut [u8]) -> io::Result<()> + Sync),
) -> io::Result<()> {
    // Whole elements of any type.
    let part_bytes = place.len().div_ceil(READERS).max(READER_BYTES_MIN).next_multiple_of(64);
    let mut parts = place.chunks_mut(part_bytes).enumerate();
    let Some((_, first)) = parts.next() else { return Ok(()) };
    std::thread::scope(|scope| {
        let others: Vec<_> =
            parts.map(|(index, part)| scope.spawn(move || fill(done + index * part_bytes, part))).collect();
        let filled = fill(done, first);
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        others.into_iter().map(join).fold(filled, io::Result::and)
    })
}

/// A tensor in its file, and the type it is wanted in.
struct Stored<'a> {
    file: &'a File,
    dtype: Dtype,
    offset: u64,
    wanted: DType,
    /// Whether numbers that are not finite are an error.
    finite: bool,
}

impl Stored<'_> {
    /// Fills `place` with what begins `done` bytes behind the tensor's beginning, counted in the wanted type.
    fn read(&self, done: usize, place: &mut [u8]) -> io::Result<()> {
        in_parts(done, place, &|done, part| self.read_part(done, part))
    }

    fn read_part(&self, done: usize, place: &mut [u8]) -> io::Result<()> {
        let (stored, wanted) = (self.dtype.bitsize() / 8, self.wanted.bytes());
        let at = |done: usize| self.offset + (done / wanted * stored) as u64;
        if self.is_direct() {
            // In pieces, so that they are checked while they are in the cache.
            for (index, piece) in place.chunks_mut(RAW_BYTES).enumerate() {
                self.file.read_exact_at(piece, at(done + index * RAW_BYTES))?;
                self.check(piece)?;
            }
            return Ok(());
        }
        let mut raw = vec![0; RAW_BYTES.min(place.len() / wanted * stored)];
        let piece_bytes = RAW_BYTES / stored * wanted;
        for (index, piece) in place.chunks_mut(piece_bytes).enumerate() {
            let raw = &mut raw[..piece.len() / wanted * stored];
            self.file.read_exact_at(raw, at(done + index * piece_bytes))?;
            convert(raw, self.dtype, self.wanted, piece);
            self.check(piece)?;
        }
        Ok(())
    }

    fn check(&self, numbers: &[u8]) -> io::Result<()> {
        if self.finite { check_finite(numbers, self.wanted) } else { Ok(()) }
    }

    fn is_direct(&self) -> bool {
        self.dtype == stored_as(self.wanted)
    }
}

/// Every exponent of a number that is not finite has all its bits set.
pub(super) fn check_finite(numbers: &[u8], dtype: DType) -> io::Result<()> {
    let sixteen = |exponent: u16| {
        let is_bad = |&b: &[u8; 2]| u16::from_le_bytes(b) & exponent == exponent;
        numbers.as_chunks().0.iter().fold(false, |bad, b| bad | is_bad(b))
    };
    let bad = match dtype {
        DType::BF16 => sixteen(0x7f80),
        DType::F16 => sixteen(0x7c00),
        DType::F32 => {
            const EXPONENT: u32 = 0x7f80_0000;
            let is_bad = |&b: &[u8; 4]| u32::from_le_bytes(b) & EXPONENT == EXPONENT;
            numbers.as_chunks().0.iter().fold(false, |bad, b| bad | is_bad(b))
        }
        _ => false,
    };
    if bad { Err(io::Error::new(io::ErrorKind::InvalidData, NotFinite)) } else { Ok(()) }
}

/// Element by element through float32, which holds both sixteen-bit types exactly.
fn convert(raw: &[u8], from: Dtype, to: DType, out: &mut [u8]) {
    match from {
        Dtype::BF16 => store(raw.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()), to, out),
        Dtype::F16 => store(raw.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()), to, out),
        _ => store(raw.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)), to, out),
    }
}

/// Numbers as they are stored, in one of the types that [`is_float`] takes.
pub fn to_floats(raw: &[u8], dtype: Dtype, out: &mut [f32]) {
    match dtype {
        Dtype::BF16 => raw.as_chunks().0.iter().zip(out).for_each(|(&b, x)| *x = bf16::from_le_bytes(b).to_f32()),
        Dtype::F16 => raw.as_chunks().0.iter().zip(out).for_each(|(&b, x)| *x = f16::from_le_bytes(b).to_f32()),
        _ => raw.as_chunks().0.iter().zip(out).for_each(|(&b, x)| *x = f32::from_le_bytes(b)),
    }
}

/// The other way, rounded to the nearest.
pub fn from_floats(numbers: &[f32], dtype: Dtype, raw: &mut [u8]) {
    let wanted = match dtype {
        Dtype::BF16 => DType::BF16,
        Dtype::F16 => DType::F16,
        _ => DType::F32,
    };
    store(numbers.iter().copied(), wanted, raw);
}

/// Whether a type of stored numbers can be computed with.
pub fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

fn store(numbers: impl Iterator<Item = f32>, to: DType, out: &mut [u8]) {
    match to {
        DType::BF16 => {
            numbers.zip(out.as_chunks_mut().0).for_each(|(x, place)| *place = bf16::from_f32(x).to_le_bytes())
        }
        DType::F16 => numbers.zip(out.as_chunks_mut().0).for_each(|(x, place)| *place = f16::from_f32(x).to_le_bytes()),
        _ => numbers.zip(out.as_chunks_mut().0).for_each(|(x, place)| *place = x.to_le_bytes()),
    }
}

/// Bytes before the data, and what the header says; the file must be as long as it promises.
fn header(path: &Path, file: &File) -> Result<(u64, Metadata), WeightError> {
    let found_bytes = file.metadata().map_err(|e| WeightError::read(path, e))?.len();
    let mut length = [0; 8];
    if found_bytes < 8 {
        return Err(WeightError::Truncated { path: path.to_owned(), expected_bytes: 8, found_bytes });
    }
    file.read_exact_at(&mut length, 0).map_err(|e| WeightError::read(path, e))?;
    if &length == b"version " && is_pointer(path) {
        return Err(WeightError::Pointer { path: path.to_owned() });
    }
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > HEADER_BYTES_MAX {
        return Err(WeightError::format(path, format!("a header of {header_bytes} bytes")));
    }
    if 8 + header_bytes > found_bytes {
        return Err(WeightError::Truncated { path: path.to_owned(), expected_bytes: 8 + header_bytes, found_bytes });
    }
    let mut buffer = vec![0; header_bytes as usize];
    file.read_exact_at(&mut buffer, 8).map_err(|e| WeightError::read(path, e))?;
    // Checks that the tensors lie one behind another and that shapes and sizes agree.
    let metadata: Metadata = serde_json::from_slice(&buffer).map_err(|e| WeightError::format(path, e))?;
    let expected_bytes = 8 + header_bytes + metadata.data_len() as u64;
    if found_bytes < expected_bytes {
        return Err(WeightError::Truncated { path: path.to_owned(), expected_bytes, found_bytes });
    }
    Ok((8 + header_bytes, metadata))
}

/// What Git leaves in the place of a large file that was not fetched.
pub fn is_pointer(path: &Path) -> bool {
    const BEGINS: &[u8] = b"version https://git-lfs.github.com/spec/";
    let mut begin = [0; BEGINS.len()];
    File::open(path).and_then(|file| file.read_exact_at(&mut begin, 0)).is_ok_and(|()| begin == BEGINS)
}

/// File names in an index, each once. They must lie in the folder itself.
fn shards(index: &Path) -> Result<Vec<String>, WeightError> {
    let text = std::fs::read_to_string(index).map_err(|e| WeightError::read(index, e))?;
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| WeightError::format(index, e))?;
    let map = json["weight_map"].as_object().ok_or_else(|| WeightError::format(index, "`weight_map` is missing"))?;
    let mut shards: Vec<String> = Vec::new();
    for value in map.values() {
        let name = value.as_str().ok_or_else(|| WeightError::format(index, "`weight_map` must name files"))?;
        if name.contains('/') || name.contains('\\') {
            return Err(WeightError::format(index, format!("`{name}` lies outside the folder")));
        }
        if !shards.iter().any(|s| s == name) {
            shards.push(name.to_owned());
        }
    }
    Ok(shards)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads one number as a file has it, into the type that is wanted.
    fn read(bytes: &[u8], stored: Dtype, wanted: DType) -> io::Result<Vec<u8>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let mut place = vec![0; wanted.bytes()];
        Stored { file: file.as_file(), dtype: stored, offset: 0, wanted, finite: true }
            .read(0, &mut place)
            .map(|()| place)
    }

    #[test]
    fn numbers_that_are_not_finite_are_noticed() {
        let types = [(Dtype::F32, DType::F32), (Dtype::BF16, DType::BF16), (Dtype::F16, DType::F16)];
        let stored = |x: f32, dtype: Dtype| match dtype {
            Dtype::BF16 => bf16::from_f32(x).to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
            _ => x.to_le_bytes().to_vec(),
        };
        for ((from, _), (_, to)) in types.iter().flat_map(|from| types.iter().map(move |to| (from, to))) {
            for x in [0.0, -0.0, 1.5, -65_000.0, 1e-40] {
                assert!(read(&stored(x, *from), *from, *to).is_ok(), "{x} from {from:?} to {to:?}");
            }
            for x in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let error = read(&stored(x, *from), *from, *to).expect_err("not finite");
                assert!(error.get_ref().is_some_and(|inner| inner.is::<NotFinite>()), "{x} from {from:?} to {to:?}");
            }
        }
        assert!(read(&stored(1e30, Dtype::BF16), Dtype::BF16, DType::F16).is_err(), "beyond the range of F16");
    }
}
