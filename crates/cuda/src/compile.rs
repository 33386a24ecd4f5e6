//! Kernels from source to machine code for one architecture, through NVRTC. Needs no GPU.

use std::ffi::{CStr, CString, c_char};

use cudarc::nvrtc::{result, sys};

use crate::cache::{Cache, hash};
use crate::dynamic;
use crate::error::CudaError;
use crate::library::{self, Library};

macro_rules! kernel_files {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("../kernels/", $name)))),*] };
}

/// Every kernel file; each is compiled as a whole and forms a module of its name.
const SOURCES: &[(&str, &str)] = kernel_files![
    "activation.cu",
    "attention_bf16_128.cu",
    "attention_bf16_64.cu",
    "attention_bf16_80.cu",
    "attention_bf16_96.cu",
    "attention_f16_128.cu",
    "attention_f16_64.cu",
    "attention_f16_80.cu",
    "attention_f16_96.cu",
    "attention_general_bf16_128.cu",
    "attention_general_bf16_64.cu",
    "attention_general_f16_128.cu",
    "attention_general_f16_64.cu",
    "attention_generic.cu",
    "cached.cu",
    "decode.cu",
    "draw.cu",
    "elementwise.cu",
    "embedding.cu",
    "few_rows.cu",
    "few_rows_coded.cu",
    "fp8.cu",
    "gated_adapters_bf16.cu",
    "gated_adapters_f16.cu",
    "gated_adapters_plain.cu",
    "layer_norm.cu",
    "linear.cu",
    "loss.cu",
    "low_rank.cu",
    "norm.cu",
    "optimizer.cu",
    "optimizer_adafactor.cu",
    "optimizer_adamw.cu",
    "optimizer_lion.cu",
    "optimizer_muon.cu",
    "optimizer_sgd.cu",
    "position_bias.cu",
    "preference.cu",
    "ranking.cu",
    "rope.cu",
    "rows.cu",
    "score.cu",
];

/// What they include.
const HEADERS: &[(&str, &str)] = kernel_files![
    "attention.cuh",
    "attention_forward.cuh",
    "attention_general.cuh",
    "attention_gradient_keys.cuh",
    "attention_gradient_queries.cuh",
    "attention_hopper_forward.cuh",
    "attention_hopper_gradient.cuh",
    "attention_pipeline.cuh",
    "attention_places.cuh",
    "attention_problem.cuh",
    "attention_ptx.cuh",
    "attention_tiles.cuh",
    "coded_states.cuh",
    "codes.cuh",
    "curves.cuh",
    "gated_adapters.cuh",
    "low_rank_both.cuh",
    "low_rank_down.cuh",
    "low_rank_gradient.cuh",
    "low_rank_parts.cuh",
    "low_rank_ptx.cuh",
    "low_rank_spans.cuh",
    "low_rank_tile.cuh",
    "low_rank_up.cuh",
    "optimizer.cuh",
    "pairs.cuh",
    "plimsoll.cuh",
    "stored.cuh",
    "tensor_cores.cuh",
];

/// Those, and the one that is made here.
fn headers() -> impl Iterator<Item = (&'static str, &'static str)> {
    HEADERS.iter().copied().chain([(dynamic::NAME, dynamic::header())])
}

/// Names of all modules.
pub(crate) fn modules() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().map(|(file, _)| file.trim_end_matches(".cu"))
}

/// Tells one set of kernels from another.
pub(crate) fn sources_hash() -> u64 {
    let texts: Vec<&str> = SOURCES.iter().copied().chain(headers()).map(|(_, text)| text).collect();
    hash(texts.join("\n").as_bytes())
}

/// The headers a source includes, and those they include.
fn headers_of(source: &str) -> Vec<(&'static str, &'static str)> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    let mut unread = vec![source];
    while let Some(text) = unread.pop() {
        for (name, body) in headers() {
            let included = text.contains(&format!("#include \"{name}\""));
            if included && !found.iter().any(|(known, _)| *known == name) {
                found.push((name, body));
                unread.push(body);
            }
        }
    }
    found
}

/// Machine code of one kernel file.
#[derive(Debug, Clone)]
pub struct Compiled {
    pub module: &'static str,
    pub cubin: Vec<u8>,
    /// Whether it was on disk already.
    pub cached: bool,
    /// What the compiler had to say.
    pub log: String,
}

/// The architecture to compile for, given a card's compute capability. Hopper's own instructions
/// (wgmma, setmaxnreg) need the name with the `a`.
pub fn architecture(capability: (u32, u32)) -> String {
    let suffix = if capability == (9, 0) { "a" } else { "" };
    format!("sm_{}{}{suffix}", capability.0, capability.1)
}

/// Compiles every kernel file for an architecture such as `sm_80`, without looking at the cache.
pub fn compile_all(arch: &str) -> Result<Vec<Compiled>, CudaError> {
    Compiler::new(arch, Cache::none())?.several(modules())
}

/// Compiles for one architecture.
pub(crate) struct Compiler {
    arch: String,
    options: Vec<String>,
    version: (i32, i32),
    cache: Cache,
}

impl Compiler {
    pub(crate) fn new(arch: &str, cache: Cache) -> Result<Self, CudaError> {
        library::require(&[Library::Nvrtc])?;
        let include = library::include_folder().ok_or_else(library::missing_headers)?;
        let options = vec![
            format!("--gpu-architecture={arch}"),
            "--std=c++17".to_owned(),
            // Lets profilers point at source lines; changes no instruction.
            "--generate-line-info".to_owned(),
            format!("--include-path={}", include.display()),
        ];
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two integers.
        unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }.result().map_err(nvrtc_error)?;
        Ok(Self { arch: arch.to_owned(), options, version: (major, minor), cache })
    }

    /// Some modules, side by side.
    pub(crate) fn several(&self, modules: impl Iterator<Item = &'static str>) -> Result<Vec<Compiled>, CudaError> {
        std::thread::scope(|scope| {
            let running: Vec<_> = modules.map(|module| scope.spawn(move || self.module(module))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            running.into_iter().map(join).collect()
        })
    }

    pub(crate) fn module(&self, module: &'static str) -> Result<Compiled, CudaError> {
        let file = format!("{module}.cu");
        let Some(&(_, source)) = SOURCES.iter().find(|(name, _)| *name == file) else {
            return Err(CudaError::Nvrtc(format!("there is no kernels/{file}")));
        };
        let key = self.key(source);
        let name = format!("{module}-{}", self.arch);
        if let Some(cubin) = self.cache.read(&name, &key) {
            return Ok(Compiled { module, cubin, cached: true, log: String::new() });
        }
        let (cubin, log) = self.compile(module, source)?;
        self.cache.write(&name, &key, &cubin);
        Ok(Compiled { module, cubin, cached: false, log })
    }

    /// Everything the result depends on.
    fn key(&self, source: &str) -> String {
        let (major, minor) = self.version;
        let headers: Vec<&str> = headers_of(source).into_iter().map(|(_, text)| text).collect();
        format!("NVRTC {major}.{minor}\n{}\n{}\n{source}", self.options.join(" "), headers.join("\n"))
    }

    fn compile(&self, module: &str, source: &str) -> Result<(Vec<u8>, String), CudaError> {
        let program = Program::new(module, source)?;
        // SAFETY: the program exists until the end of this function.
        let compiled = unsafe { result::compile_program(program.handle, &self.options) };
        let log = program.log();
        match compiled {
            Ok(()) => Ok((program.cubin()?, log)),
            Err(error) if log.is_empty() => Err(nvrtc_error(error)),
            Err(_) => Err(CudaError::Compile { module: module.to_owned(), arch: self.arch.clone(), log }),
        }
    }
}

fn nvrtc_error(error: result::NvrtcError) -> CudaError {
    // SAFETY: NVRTC gives a static string for every code.
    let text = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(error.0)) };
    CudaError::Nvrtc(text.to_string_lossy().into_owned())
}

/// One source on its way.
struct Program {
    handle: sys::nvrtcProgram,
}

impl Program {
    fn new(module: &str, source: &str) -> Result<Self, CudaError> {
        let text =
            |text: &str| CString::new(text).map_err(|_| CudaError::Nvrtc(format!("{module}.cu holds a zero byte")));
        let headers = headers_of(source);
        let names = headers.iter().map(|(name, _)| text(name)).collect::<Result<Vec<_>, _>>()?;
        let bodies = headers.iter().map(|(_, body)| text(body)).collect::<Result<Vec<_>, _>>()?;
        let name_pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let body_pointers: Vec<*const c_char> = bodies.iter().map(|body| body.as_ptr()).collect();
        let (source, name) = (text(source)?, text(&format!("{module}.cu"))?);
        let mut handle = std::ptr::null_mut();
        // SAFETY: all strings end in zero and outlive the call, which copies them.
        unsafe {
            sys::nvrtcCreateProgram(
                &raw mut handle,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as i32,
                body_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        }
        .result()
        .map_err(nvrtc_error)?;
        Ok(Self { handle })
    }

    fn log(&self) -> String {
        // SAFETY: the program exists.
        let log: Vec<c_char> = unsafe { result::get_program_log(self.handle) }.unwrap_or_default();
        let bytes: Vec<u8> = log.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    fn cubin(&self) -> Result<Vec<u8>, CudaError> {
        let mut bytes = 0;
        // SAFETY: the program was compiled; the second call writes as many bytes as the first one named.
        unsafe {
            sys::nvrtcGetCUBINSize(self.handle, &raw mut bytes).result().map_err(nvrtc_error)?;
            let mut cubin = vec![0u8; bytes];
            sys::nvrtcGetCUBIN(self.handle, cubin.as_mut_ptr().cast()).result().map_err(nvrtc_error)?;
            Ok(cubin)
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { result::destroy_program(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_file_is_listed() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let mut there: Vec<String> = std::fs::read_dir(folder)
            .expect("the folder is part of the crate")
            .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
            .collect();
        there.sort();
        let mut listed: Vec<&str> = SOURCES.iter().chain(HEADERS).map(|(name, _)| *name).collect();
        listed.sort_unstable();
        assert_eq!(there, listed);
    }

    #[test]
    fn headers_of_headers_come_along() {
        let names: Vec<&str> = headers_of("#include \"attention_ptx.cuh\"").into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["attention_ptx.cuh", "tensor_cores.cuh", "plimsoll.cuh"]);
    }

    #[test]
    fn hopper_gets_its_own_instructions() {
        assert_eq!(architecture((8, 6)), "sm_86");
        assert_eq!(architecture((9, 0)), "sm_90a");
        assert_eq!(architecture((12, 0)), "sm_120");
    }
}
