# rocenante._C, against the torch of ROCENANTE_PYTHON. Not by find_package(Torch), which fails with a
# CUDA torch where the full CUDA toolkit is missing; torch's folder is all that is needed.
function(ask_python variable code)
  execute_process(COMMAND ${ROCENANTE_PYTHON} -c "${code}" OUTPUT_VARIABLE answer
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${variable} "${answer}" PARENT_SCOPE)
endfunction()

if(NOT ROCENANTE_TORCH)
  ask_python(ROCENANTE_TORCH "import importlib.util as u, os
print(os.path.dirname(u.find_spec('torch').origin))")
endif()
ask_python(torch_version
  "import runpy; print(runpy.run_path('${ROCENANTE_TORCH}/version.py')['__version__'])")
ask_python(python_include "import sysconfig; print(sysconfig.get_path('include'))")
ask_python(extension_suffix "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))")
if(NOT EXISTS ${python_include}/Python.h)
  message(FATAL_ERROR "no Python.h in ${python_include}: on Debian, apt-get install python3-dev")
endif()

file(GLOB torch_sources CONFIGURE_DEPENDS csrc/torch/*.cc)
add_library(_C MODULE ${torch_sources})
# torch, imported before _C, has loaded its libraries already: a run path would only add a wrong one.
set_target_properties(_C PROPERTIES PREFIX "" SUFFIX "${extension_suffix}" SKIP_BUILD_RPATH ON)
target_include_directories(_C SYSTEM PRIVATE ${ROCENANTE_TORCH}/include
  ${ROCENANTE_TORCH}/include/torch/csrc/api/include ${python_include})
target_compile_definitions(_C PRIVATE TORCH_EXTENSION_NAME=_C)
# torch's headers take most of a source's time: a few sources at once, one batch for each of two cores.
set_target_properties(_C PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 9)
target_compile_options(_C PRIVATE -O2) # torch's headers: no loop here is worth the time of -O3
target_link_directories(_C PRIVATE ${ROCENANTE_TORCH}/lib)
target_link_libraries(_C PRIVATE rocenante_device rocenante_core torch_python torch torch_cpu c10)

# What was built, readable without loading it.
set(cuda_archs "")
foreach(arch ${ROCENANTE_CUDA_ARCHS})
  string(APPEND cuda_archs "\"${arch}\", ")
endforeach()
configure_file(${CMAKE_SOURCE_DIR}/cmake/_build.py.in ${CMAKE_BINARY_DIR}/_build.py @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/_build.py DESTINATION rocenante)
install(TARGETS _C DESTINATION rocenante)
message(STATUS "rocenante: extension for torch ${torch_version} in ${ROCENANTE_TORCH}")
