//! Loaded kernels.

use std::collections::HashMap;
use std::ffi::CString;
use std::rc::Rc;
use std::sync::OnceLock;

use cudarc::driver::{result, sys};

use crate::cache::Cache;
use crate::compile::{self, Compiled, Compiler};
use crate::error::{CudaError, driver_error};
use crate::library;

/// A kernel gets more shared memory than this only after asking.
const SHARED_BYTES_DEFAULT: u32 = 48 << 10;

/// Loaded modules and the functions looked up so far.
pub(crate) struct Kernels {
    compiler: Compiler,
    modules: HashMap<&'static str, sys::CUmodule>,
    functions: HashMap<&'static str, HashMap<String, Function>>,
}

#[derive(Clone)]
pub(crate) struct Function {
    pub handle: sys::CUfunction,
    /// Bytes of each parameter; `None` where the driver is too old to tell.
    pub parameters: Option<Rc<[usize]>>,
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
    ) -> Result<Function, CudaError> {
        let known = self.functions.get(module).and_then(|functions| functions.get(kernel)).cloned();
        let mut function = match known {
            Some(function) if shared_bytes <= function.shared_bytes_max => return Ok(function),
            Some(function) => function,
            None => look_up(self.module(module)?, module, kernel)?,
        };
        let handle = function.handle;
        if shared_bytes > SHARED_BYTES_DEFAULT {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function's module stays loaded.
            unsafe { result::function::set_function_attribute(handle, attribute, shared_bytes as i32) }
                .map_err(driver_error(format!("{shared_bytes} bytes of shared memory for {module}.{kernel}")))?;
        }
        function.shared_bytes_max = shared_bytes.max(SHARED_BYTES_DEFAULT);
        self.functions.entry(module).or_default().insert(kernel.to_owned(), function.clone());
        Ok(function)
    }
}

fn load(compiled: &Compiled) -> Result<sys::CUmodule, CudaError> {
    // SAFETY: the image is a complete cubin; the driver copies it.
    unsafe { result::module::load_data(compiled.cubin.as_ptr().cast()) }
        .map_err(driver_error(format!("loading kernels/{}.cu", compiled.module)))
}

fn look_up(loaded: sys::CUmodule, module: &str, kernel: &str) -> Result<Function, CudaError> {
    let name = CString::new(kernel)
        .map_err(|_| CudaError::Driver { call: format!("{module}.{kernel}"), reason: "no such kernel".to_owned() })?;
    // SAFETY: the module stays loaded.
    let handle =
        unsafe { result::module::get_function(loaded, name) }.map_err(driver_error(format!("{module}.{kernel}")))?;
    Ok(Function { handle, parameters: parameters(handle), shared_bytes_max: SHARED_BYTES_DEFAULT })
}

/// `cuFuncGetParamInfo`, which drivers have from CUDA 12.4 on: a parameter's offset and size by its number.
type ParameterInfo = unsafe extern "C" fn(sys::CUfunction, usize, *mut usize, *mut usize) -> sys::CUresult;

fn parameters(function: sys::CUfunction) -> Option<Rc<[usize]>> {
    static ASK: OnceLock<Option<ParameterInfo>> = OnceLock::new();
    // SAFETY: the type is the one that the driver's header declares.
    let ask = (*ASK.get_or_init(|| unsafe { library::driver()?.function(c"cuFuncGetParamInfo") }))?;
    let size = |number| {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function's module is loaded, and both places outlive the call. Behind the last one it fails.
        let answer = unsafe { ask(function, number, &raw mut offset, &raw mut size) };
        (answer == sys::CUresult::CUDA_SUCCESS).then_some(size)
    };
    Some((0..).map_while(size).collect())
}

impl Drop for Kernels {
    fn drop(&mut self) {
        for &module in self.modules.values() {
            // SAFETY: loaded once, unloaded once, after the last launch.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}
