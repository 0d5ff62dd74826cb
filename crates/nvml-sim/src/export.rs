//! How a function of NVIDIA's libraries is written here.

/// Exports functions with C linkage, whose bodies answer with [`crate::status::Answer`]. Versions
/// that share a body stand in brackets: `fn [nvmlInit nvmlInit_v2]() { .. }`.
macro_rules! export {
    () => {};
    ($(#[$meta:meta])* fn [$($name:ident)+] $parameters:tt $body:block $($rest:tt)*) => {
        $(export! { fn $name $parameters $body })+
        export! { $($rest)* }
    };
    (
        $(#[$meta:meta])*
        fn $name:ident ($($parameter:ident: $type:ty),* $(,)?) $body:block
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        // SAFETY: the name is NVML's or CUDA's; whoever loads this library wants it in place of NVIDIA's.
        #[unsafe(no_mangle)]
        extern "C" fn $name($($parameter: $type),*) -> $crate::status::Code {
            $crate::status::answer(|| $body)
        }
        export! { $($rest)* }
    };
}
