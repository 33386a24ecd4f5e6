//! Loaded kernels.

use std::collections::HashMap;
use std::ffi::CString;

use cudarc::driver::{result, sys};

use crate::cache::Cache;
use crate::compile::{self, Compiled, Compiler};
use crate::error::{CudaError, driver_error};

/// A kernel gets more shared memory than this only after asking.
const SHARED_BYTES_DEFAULT: u32 = 48 << 10;

/// Loaded modules and the functions looked up so far.
pub(crate) struct Kernels {
    compiler: Compiler,
    modules: HashMap<&'static str, sys::CUmodule>,
    functions: HashMap<&'static str, HashMap<String, Function>>,
}

#[derive(Clone, Copy)]
struct Function {
    handle: sys::CUfunction,
    /// Dynamic shared memory it may be given.
    shared_bytes_max: u32,
}

impl Kernels {
    /// Loads everything but what a model uses one kind of many of: that comes with its first launch.
    pub(crate) fn load(arch: &str) -> Result<Self, CudaError> {
        let compiler = Compiler::new(arch, Cache::of_user())?;
        let mut modules = HashMap::new();
        let one_of_many = |name: &str| ["attention", "gated_adapters"].iter().any(|kind| name.starts_with(kind));
        for compiled in compiler.several(compile::modules().filter(|name| !one_of_many(name)))? {
            modules.insert(compiled.module, load(&compiled)?);
        }
        Ok(Self { compiler, modules, functions: HashMap::new() })
    }

    fn module(&mut self, module: &'static str) -> Result<sys::CUmodule, CudaError> {
        if let Some(&loaded) = self.modules.get(module) {
            return Ok(loaded);
        }
        let loaded = load(&self.compiler.module(module)?)?;
        self.modules.insert(module, loaded);
        Ok(loaded)
    }

    pub(crate) fn function(
        &mut self,
        module: &'static str,
        kernel: &str,
        shared_bytes: u32,
    ) -> Result<sys::CUfunction, CudaError> {
        let known = self.functions.get(module).and_then(|functions| functions.get(kernel)).copied();
        if let Some(function) = known.filter(|function| shared_bytes <= function.shared_bytes_max) {
            return Ok(function.handle);
        }
        let handle = match known {
            Some(function) => function.handle,
            None => look_up(self.module(module)?, module, kernel)?,
        };
        if shared_bytes > SHARED_BYTES_DEFAULT {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function's module stays loaded.
            unsafe { result::function::set_function_attribute(handle, attribute, shared_bytes as i32) }
                .map_err(driver_error(format!("{shared_bytes} bytes of shared memory for {module}.{kernel}")))?;
        }
        let function = Function { handle, shared_bytes_max: shared_bytes.max(SHARED_BYTES_DEFAULT) };
        self.functions.entry(module).or_default().insert(kernel.to_owned(), function);
        Ok(handle)
    }
}

fn load(compiled: &Compiled) -> Result<sys::CUmodule, CudaError> {
    // SAFETY: the image is a complete cubin; the driver copies it.
    unsafe { result::module::load_data(compiled.cubin.as_ptr().cast()) }
        .map_err(driver_error(format!("loading kernels/{}.cu", compiled.module)))
}

fn look_up(loaded: sys::CUmodule, module: &str, kernel: &str) -> Result<sys::CUfunction, CudaError> {
    let name = CString::new(kernel)
        .map_err(|_| CudaError::Driver { call: format!("{module}.{kernel}"), reason: "no such kernel".to_owned() })?;
    // SAFETY: the module stays loaded.
    unsafe { result::module::get_function(loaded, name) }.map_err(driver_error(format!("{module}.{kernel}")))
}

impl Drop for Kernels {
    fn drop(&mut self) {
        for &module in self.modules.values() {
            // SAFETY: loaded once, unloaded once, after the last launch.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}
