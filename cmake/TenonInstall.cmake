# cmake --install BUILD --prefix DIR [--strip]: DIR/bin/tenon and, in DIR/lib, the third-party shared libraries it
# needs, found relative to the program, so that the folder can be moved and runs on any Linux whose C and C++
# libraries are not older than the build machine's. cuBLAS is not copied: it comes with a CUDA toolkit, or through
# LD_LIBRARY_PATH.
function(tenon_install TARGET)
  set_target_properties(${TARGET} PROPERTIES INSTALL_RPATH
    "$ORIGIN/../lib;/usr/local/cuda/lib64;/usr/local/cuda/targets/x86_64-linux/lib")
  # DT_RPATH, which libraries' own dependencies are looked up by as well; DT_RUNPATH is not.
  target_link_options(${TARGET} PRIVATE LINKER:--disable-new-dtags)
  install(TARGETS ${TARGET} RUNTIME_DEPENDENCY_SET tenon_libraries RUNTIME DESTINATION bin)
  install(RUNTIME_DEPENDENCY_SET tenon_libraries
    PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv)\\.so" "^lib(stdc\\+\\+|gcc_s)\\.so"
                        "^lib(cublas|cublasLt|cuda|nvrtc)[.-]"
    LIBRARY DESTINATION lib)
endfunction()
